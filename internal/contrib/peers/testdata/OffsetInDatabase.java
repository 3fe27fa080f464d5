import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

// A consumer that stores its offset outside Kafka, as the javadoc of KafkaConsumer describes: "store
// both the offset and the results atomically", and seek when a partition is assigned.
public class OffsetInDatabase {
    static final int HARD = 5; // the message that takes its time, and freezes
    static final String name = System.getenv("NAME"), freeze = System.getenv("FREEZE");
    static Connection work, book; // book writes outside the transactions

    public static void main(String[] args) throws Exception {
        String url = System.getenv("JDBC");
        work = DriverManager.getConnection(url);
        book = DriverManager.getConnection(url);
        work.setAutoCommit(false);
        Properties p = new Properties();
        p.put("bootstrap.servers", System.getenv("KAFKA"));
        p.put("group.id", System.getenv("TOPIC"));
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        p.put("session.timeout.ms", System.getenv("SESSION"));
        p.put("heartbeat.interval.ms", "1000");
        p.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        p.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p);
        consumer.subscribe(List.of(System.getenv("TOPIC")), new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> gone) {}

            public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                for (TopicPartition one : assigned) {
                    consumer.seek(one, position());
                }
            }
        });
        while (true) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                handle(record);
            }
        }
    }

    static long position() {
        try (ResultSet row = book.createStatement().executeQuery("select next from position")) {
            row.next();
            return row.getLong(1);
        } catch (SQLException e) {
            throw new RuntimeException(e);
        }
    }

    static void handle(ConsumerRecord<String, String> record) throws Exception {
        int item = Integer.parseInt(record.value());
        execute(book, "insert into run (pod, tick) values (?, ?)", name, record.value());
        if (item == HARD) {
            Thread.sleep(600);
            freeze("in its work");
            Thread.sleep(600);
        }
        execute(work, "insert into effect (item, pod) values (?::int, ?)", record.value(), name);
        if (item == HARD) {
            freeze("before its last check");
        }
        execute(work, "insert into position (next) values (?::bigint) on conflict (one) do update set next = excluded.next", "" + (record.offset() + 1));
        if (item == HARD) {
            freeze("before COMMIT");
        }
        work.commit();
        System.out.println("\u0001{\"Kind\":\"returned\"}");
    }

    // freeze stops this process if it is the first one here. The thread waits for the command that
    // sends the signal, and so executes nothing more.
    static void freeze(String here) throws Exception {
        if (here.equals(freeze) && execute(book, "insert into frozen (pod) values (?) on conflict do nothing", name) == 1) {
            System.out.println("\u0001{\"Kind\":\"frozen\"}");
            new ProcessBuilder("sh", "-c", "kill -STOP $PPID; sleep 0.2").start().waitFor();
        }
    }

    static int execute(Connection on, String sql, String... values) throws SQLException {
        try (PreparedStatement s = on.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                s.setString(i + 1, values[i]);
            }
            return s.executeUpdate();
        }
    }
}
