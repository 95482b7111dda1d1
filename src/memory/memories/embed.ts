import { textVectors } from '../../content/chunks/embed.ts'
import { currentSpace } from '../../content/embeddings/space.ts'
import type { Services } from '../../core/process/services.ts'
import type { EmbeddedMemory } from './store.ts'

/**
 * The vectors of a text that is about to be written. Never raises for what a provider does: what could not be embedded
 * within EMBEDDING_INLINE_TIMEOUT_MS is embedded later. No connection and no lock may be held meanwhile.
 * @param text.admitted it is part of work that was let in before: quotas are not asked again
 * @throws QUOTA_EXCEEDED
 */
export async function embedContent(
  services: Services,
  { project_id, ref, content, admitted }: { project_id: string; ref: string; content: string; admitted?: boolean },
): Promise<EmbeddedMemory> {
  const [[{ vectors, failed }], space] = await Promise.all([
    textVectors(services, [{ content, context: null }], {
      project_id,
      purpose: { kind: 'memory', ref },
      timeoutMs: services.config.EMBEDDING_INLINE_TIMEOUT_MS,
      admitted,
    }),
    currentSpace(services),
  ])
  return { vectors, failed, space }
}
