import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.MessageDecoder;

/** Decodes every record of a commit log with RocketMQ's own decoder, once for each line on stdin; prints the count. */
public final class DecodeBench {
    private static final int BLANK = 0xCBD43194;

    private DecodeBench() {
    }

    public static void main(String[] arguments) throws Exception {
        List<MappedByteBuffer> files = new ArrayList<>();
        try (var names = Files.list(Path.of(arguments[0], "commitlog"))) {
            for (Path path : names.sorted().toList()) {
                try (FileChannel channel = FileChannel.open(path)) {
                    files.add(channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()));
                }
            }
        }
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        while (asked.readLine() != null) {
            long count = 0;
            for (ByteBuffer file : files) {
                count += decodeAll(file);
            }
            System.out.println(count);
            System.out.flush();
        }
    }

    private static long decodeAll(ByteBuffer file) {
        long count = 0;
        int position = 0;
        while (position + 8 <= file.capacity()) {
            int size = file.getInt(position);
            if (size <= 0 || file.getInt(position + 4) == BLANK) {
                break;
            }
            file.position(position);
            if (MessageDecoder.decode(file, true, false, false) == null) {
                throw new IllegalStateException("no record at " + position);
            }
            position += size;
            count++;
        }
        return count;
    }
}
