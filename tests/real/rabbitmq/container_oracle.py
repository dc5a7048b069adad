"""How a real node of RabbitMQ 4 converts messages of another protocol for an AMQP 0-9-1 consumer, queried directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage_core.formats.rabbitmq.erlang import external_term as et
from tests.real.rabbitmq.node_4 import Node4

ASK = """
{ok, In} = file:read_file("%s"),
Why = fun(E) -> list_to_binary(io_lib:format("~0p", [E])) end,
Encode = fun(Content) ->
  %% 4.3 no longer asks for the protocol.
  try rabbit_binary_generator:ensure_content_encoded(Content)
  catch error:undef -> rabbit_binary_generator:ensure_content_encoded(Content, rabbit_framing_amqp_0_9_1) end
end,
Say = fun({Protocol, Content, Noted, Stored}) ->
  try
    Mc0 = mc:init(Protocol, Content, maps:merge(#{x => <<>>, rk => [<<"q">>], id => <<0:128>>}, Noted)),
    Mc = case Stored of true -> mc:prepare(store, Mc0); false -> Mc0 end,
    Term = case Stored of true -> term_to_binary(Mc); false -> <<>> end,
    try
      Said = Encode(mc:protocol_state(mc:convert(mc_amqpl, Mc))),
      {Term, element(4, Said), iolist_to_binary(lists:reverse(element(6, Said)))}
    catch _:E1 -> {Term, Why(E1)} end
  catch _:E2 -> {Why(E2)} end
end,
ok = file:write_file("%s", term_to_binary([Say(Each) || Each <- binary_to_term(In)])).
"""


@dataclass(frozen=True)
class Converted:
    """A message as the node stores it, and what it delivers. If it fails, `why` is set instead, `stored` or not."""

    stored: bytes | None
    properties: bytes = b""
    body: bytes = b""
    why: str = ""


def ask(node: Node4, protocol: str, messages: list[tuple[Any, dict[Any, Any]]], stored: bool = True) -> list[Converted]:
    """One answer for each message and its annotations: if `stored`, as a classic queue keeps it, else as a stream."""
    question_file, answer_file = node.folder / "asked", node.folder / "told"
    question_file.write_bytes(et.encode([(et.Atom(protocol), content, noted, stored) for content, noted in messages]))
    inside = (str(each).replace(str(node.root), "") for each in (question_file, answer_file))
    node.eval(ASK % tuple(inside))
    found = []
    for answer in et.decode(answer_file.read_bytes()):
        if len(answer) == 3:
            found.append(Converted(*answer))
        else:
            found.append(Converted(answer[0] if len(answer) == 2 else None, why=answer[-1].decode()))
    return found
