import { z } from 'zod'
import { kindWithoutRows } from '../../core/api/kind.ts'

/** The embedding model of the deployment. */
export type EmbeddingModel = { provider: string; model: string; dimensions: number }

export type EmbedOptions = {
  /** Whom the tokens are metered to; null meters nobody. */
  project_id: string | null
  /** What the texts are: row or request the usage is recorded under. */
  purpose: { kind: 'document' | 'memory' | 'search' | 'api' | 'eval'; ref: string }
  /** Waits so long in all; what is not done by then is null. 0 waits for nothing. */
  timeoutMs?: number
  /** Ends the wait with its reason. */
  signal?: AbortSignal
  /** Tries after the first one of a call; default 2. */
  retries?: number
  /** Work nobody waits for: goes after everything else. */
  background?: boolean
  /** Every text has to have its vector: one that failed fails all. */
  complete?: boolean
  /** Part of work that was let in before, such as a turn: quotas are not asked again. Nor are they for background work. */
  admitted?: boolean
}

/** What policies name the use of the embedding model by. */
export const embeddingKind = kindWithoutRows('embedding')

/** Characters of a text that is embedded on demand. */
export const MAX_TEXT_CHARACTERS = 32_000
const MAX_TEXTS = 256

const Text = z.string().min(1).max(MAX_TEXT_CHARACTERS)

export const EmbeddingsInput = z
  .strictObject({
    input: Text.optional().describe('One text'),
    inputs: z.array(Text).min(1).max(MAX_TEXTS).optional().describe('Several texts'),
    project_id: z.string().optional().describe('Whom the tokens are metered to; without it nobody'),
  })
  .refine(({ input, inputs }) => input !== undefined || inputs !== undefined, {
    message: 'give input, inputs or both',
    path: ['input'],
  })
  .meta({ id: 'EmbeddingsInput', example: { input: 'Orders can be returned within 30 days.' } })

const Vector = z.array(z.number()).describe('L2-normalized')

export const Embeddings = z
  .object({
    embedding: Vector.optional().describe('Of `input`'),
    embeddings: z.array(Vector).optional().describe('Of `inputs`, in their order'),
    model: z.string(),
    dimensions: z.int(),
  })
  .meta({ id: 'Embeddings' })

export const EmbeddingConfig = z
  .object({
    configured: z.boolean().describe('Whether there is an embedding model'),
    provider: z.string().nullable(),
    model: z.string().nullable(),
    dimensions: z.int().nullable(),
    reindex: z
      .object({
        pending: z.int().describe('Documents whose chunks have no vectors of this model yet'),
      })
      .describe('How far documents follow the model'),
  })
  .meta({ id: 'EmbeddingConfig' })
