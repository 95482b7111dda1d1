import { embeddingActors } from '../src/content/embeddings/handler.ts'
import { fileActors } from '../src/content/files/sweep.ts'
import { documentActors } from '../src/content/ingestion/handler.ts'
import { vectorActors } from '../src/content/vectors/pgvector.ts'
import type { Services } from '../src/core/process/services.ts'
// Fills in how agents convert files.
import '../src/execution/agents/convert.ts'
import type { Concern } from './concern.ts'

/** Files that become documents, their vectors, and what is left behind in storage. */
export function ingestionActors(services: Services): Concern {
  const parts = [fileActors(services), documentActors(services), embeddingActors(services), vectorActors(services)]
  return { actors: parts.flatMap(part => part.actors), ticks: parts.flatMap(part => part.ticks) }
}
