import { textVectors } from '#content/index/chunks/embed.ts'
import { currentSpace } from '#content/index/embeddings/space.ts'
import type { Services } from '#core/base/services.ts'
import type { EmbeddedMemory } from './store.ts'

/**
 * Embeds a text before it is written. If the provider fails or exceeds EMBEDDING_INLINE_TIMEOUT_MS, the text is
 * embedded later. The caller must not hold a connection or a lock.
 * @param text.admitted part of work whose quotas were already checked
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
