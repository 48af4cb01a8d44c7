import io.micrometer.observation.ObservationRegistry;
import java.nio.file.Files;
import java.nio.file.Path;
import org.springframework.ai.chat.client.ChatClient;
import org.springframework.ai.chat.client.advisor.vectorstore.QuestionAnswerAdvisor;
import org.springframework.ai.document.Document;
import org.springframework.ai.embedding.EmbeddingModel;
import org.springframework.ai.vectorstore.SearchRequest;
import org.springframework.ai.vectorstore.SimpleVectorStore;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;

/** A chat client with an advisor that retrieves; Spring's observations become spans. */
@EnableAutoConfiguration
public class SpringAi {
  public static void main(String[] arguments) throws Exception {
    var context = SpringApplication.run(SpringAi.class);
    var store =
        SimpleVectorStore.builder(context.getBean(EmbeddingModel.class))
            .observationRegistry(context.getBean(ObservationRegistry.class))
            .build();
    store.add(Files.readAllLines(Path.of(arguments[0])).stream().map(Document::new).toList());
    var advisor =
        QuestionAnswerAdvisor.builder(store)
            .searchRequest(SearchRequest.builder().topK(2).build())
            .build();
    var client = context.getBean(ChatClient.Builder.class).defaultAdvisors(advisor).build();
    for (var i = 1; i < arguments.length; i++) {
      client.prompt().user(arguments[i]).call().content();
    }
    context.close();
  }
}
