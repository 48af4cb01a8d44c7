import dev.langchain4j.data.segment.TextSegment;
import dev.langchain4j.model.openaiofficial.OpenAiOfficialChatModel;
import dev.langchain4j.model.openaiofficial.OpenAiOfficialEmbeddingModel;
import dev.langchain4j.rag.content.retriever.EmbeddingStoreContentRetriever;
import dev.langchain4j.service.AiServices;
import dev.langchain4j.store.embedding.inmemory.InMemoryEmbeddingStore;
import java.nio.file.Files;
import java.nio.file.Path;

/** An AI service with a content retriever; the Java agent traces the client of OpenAI. */
public class LangChain4j {
  interface Assistant {
    String answer(String question);
  }

  public static void main(String[] arguments) throws Exception {
    var address = System.getenv("OPENAI_BASE_URL");
    var embedder =
        OpenAiOfficialEmbeddingModel.builder()
            .baseUrl(address)
            .apiKey("none")
            .modelName("scripted-embedding")
            .build();
    var store = new InMemoryEmbeddingStore<TextSegment>();
    for (var line : Files.readAllLines(Path.of(arguments[0]))) {
      store.add(embedder.embed(line).content(), TextSegment.from(line));
    }
    var assistant =
        AiServices.builder(Assistant.class)
            .chatModel(
                OpenAiOfficialChatModel.builder()
                    .baseUrl(address)
                    .apiKey("none")
                    .modelName("scripted")
                    .build())
            .contentRetriever(
                EmbeddingStoreContentRetriever.builder()
                    .embeddingStore(store)
                    .embeddingModel(embedder)
                    .maxResults(2)
                    .build())
            .build();
    for (var i = 1; i < arguments.length; i++) {
      assistant.answer(arguments[i]);
    }
    System.exit(0); // the client's threads would wait a minute
  }
}
