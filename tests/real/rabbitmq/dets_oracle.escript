#!/usr/bin/env escript
%% Asks Erlang's dets, as a node opens recovery.dets, for the objects of damaged tables:
%%   dets_oracle.escript TABLE FOLDER BITS KEY ...
%% BITS is a file with one list of bit numbers. Prints a line for each of them, of TABLE with that bit flipped (-1: none):
%% the bit, then `refused`, or for each key its object as a term in base64, `none`, or `error`.

main([Table, Folder, Bits | Keys]) ->
    {ok, Data} = file:read_file(Table),
    {ok, [Flips]} = file:consult(Bits),
    File = filename:join(Folder, "flipped.dets"),
    [io:format("~w ~s~n", [Bit, asked(File, flipped(Data, Bit), Keys)]) || Bit <- Flips].

flipped(Data, -1) ->
    Data;
flipped(Data, Bit) ->
    At = Bit div 8,
    <<Head:At/binary, Byte, Tail/binary>> = Data,
    <<Head/binary, (Byte bxor (1 bsl (Bit rem 8))), Tail/binary>>.

asked(File, Data, Keys) ->
    ok = file:write_file(File, Data),
    case catch dets:open_file(asked, [{file, File}, {ram_file, true}, {auto_save, infinity}]) of
        {ok, asked} ->
            Found = [said(catch dets:lookup(asked, Key)) || Key <- Keys],
            dets:close(asked),
            lists:join(" ", Found);
        _ ->
            "refused"
    end.

said([Object]) -> base64:encode(term_to_binary(Object));
said([]) -> "none";
said(_) -> "error".
