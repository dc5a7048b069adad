import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
// Whole packages: 4.9 and 5.x keep some of these classes in different ones.
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Puts messages into RocketMQ's own store, COUNT for each line on stdin, on one thread, with its default settings
 * (asynchronous flush); prints the seconds of putMessage, and those until queues and index had caught up.
 *
 * Arguments: STORE_DIR COUNT BODY_BYTES. The store stays open, so only the first round pays for a cold JVM.
 */
public final class StoreBench {
    private StoreBench() {
    }

    public static void main(String[] arguments) throws Exception {
        java.io.PrintStream result = System.out;
        System.setOut(System.err);
        DefaultMessageStore store = open(new File(arguments[0]).getAbsolutePath());
        int count = Integer.parseInt(arguments[1]);
        byte[] body = new byte[Integer.parseInt(arguments[2])];
        new Random(1).nextBytes(body);
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (int first = 0; asked.readLine() != null; first += count) {
            long start = System.nanoTime();
            put(store, first, count, body);
            long put = System.nanoTime();
            while (store.dispatchBehindBytes() > 0) {
                Thread.sleep(1);
            }
            result.println((put - start) / 1e9 + " " + (System.nanoTime() - start) / 1e9);
            result.flush();
        }
        store.shutdown();
        Runtime.getRuntime().halt(0);
    }

    private static void put(DefaultMessageStore store, int first, int count, byte[] body) {
        InetSocketAddress born = new InetSocketAddress("127.0.0.1", 12345);
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        for (int i = first; i < first + count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic("bench");
            message.setQueueId(i & 3);
            message.setBody(body);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(born);
            message.setStoreHost(host);
            Map<String, String> properties = new HashMap<>();
            properties.put("KEYS", "order-" + i);
            properties.put("TAGS", "Tag" + i % 5);
            properties.put("UNIQ_KEY", String.format("7F000001%024X", i));
            MessageAccessor.setProperties(message, properties);
            message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
            PutMessageResult done = store.putMessage(message);
            if (!done.isOk()) {
                throw new IllegalStateException(done.toString());
            }
        }
    }

    private static DefaultMessageStore open(String root) throws Exception {
        Properties given = new Properties();
        given.setProperty("storePathRootDir", root);
        given.setProperty("storePathCommitLog", root + "/commitlog");
        given.setProperty("haListenPort", "0");
        given.setProperty("diskMaxUsedSpaceRatio", "99");
        given.setProperty("cleanFileForciblyEnable", "false");
        System.setProperty("rocketmq.broker.diskSpaceWarningLevelRatio", "0.999");
        System.setProperty("rocketmq.broker.diskSpaceCleanForciblyRatio", "0.999");
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(given, config);
        DefaultMessageStore store = made(config);
        if (!store.load()) {
            throw new IllegalStateException("load failed");
        }
        store.start();
        return store;
    }

    /** 4.9 and 5.x have constructors of four and of five arguments. */
    private static DefaultMessageStore made(MessageStoreConfig config) throws Exception {
        MessageArrivingListener listener = (topic, queueId, offset, tags, time, bits, properties) -> { };
        BrokerStatsManager stats = new BrokerStatsManager("bench", true);
        Constructor<?> least = null;
        for (Constructor<?> each : DefaultMessageStore.class.getConstructors()) {
            least = least == null || each.getParameterCount() < least.getParameterCount() ? each : least;
        }
        boolean four = least.getParameterCount() == 4;
        return (DefaultMessageStore) (four ? least.newInstance(config, stats, listener, new BrokerConfig())
            : least.newInstance(config, stats, listener, new BrokerConfig(), new ConcurrentHashMap<String, TopicConfig>()));
    }
}
