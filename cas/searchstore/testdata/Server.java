import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CountDownLatch;

import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A node of OpenSearch with the settings that the arguments are, as name=value. */
public class Server extends Node {
    Server(Settings settings) {
        super(new Environment(settings, Path.of(settings.get("path.home"))), List.of(Netty4Plugin.class), true);
    }

    public static void main(String[] args) throws Exception {
        Settings.Builder settings = Settings.builder();
        for (String arg : args) {
            String[] s = arg.split("=", 2);
            settings.put(s[0], s[1]);
        }
        new Server(settings.build()).start();
        new CountDownLatch(1).await();
    }
}
