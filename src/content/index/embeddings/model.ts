import { z } from 'zod'
import { kindWithoutRows } from '#core/api/kind.ts'

/** The embedding model of the deployment. */
export type EmbeddingModel = { provider: string; model: string; dimensions: number }

export type EmbedOptions = {
  /** Project that the tokens are metered to; null for none. */
  project_id: string | null
  /** Purpose of the texts, and the row or request that the usage is recorded under. */
  purpose: { kind: 'document' | 'memory' | 'search' | 'api' | 'eval'; ref: string }
  /** Total timeout, after which unfinished texts are null. 0 does not wait for a provider. */
  timeoutMs?: number
  /** Receives the index of each text that the model refuses permanently. */
  onRefused?: (index: number) => void
  /** Rejects with its reason. */
  signal?: AbortSignal
  /** Retries of a provider call. Default 2. */
  retries?: number
  /** Low priority: processed when no other text waits; quotas are not checked. */
  background?: boolean
  /** Whether the failure of one text fails all. */
  complete?: boolean
  /** Part of work whose quotas were already checked, such as a turn. */
  admitted?: boolean
}

/** Resource kind of the embedding model in policies. */
export const embeddingKind = kindWithoutRows('embedding')

/** Maximum length of a text in a request. */
export const MAX_TEXT_CHARACTERS = 32_000
const MAX_TEXTS = 256

const Text = z.string().min(1).max(MAX_TEXT_CHARACTERS)

export const EmbeddingsInput = z
  .strictObject({
    input: Text.optional().describe('Text to embed'),
    inputs: z.array(Text).min(1).max(MAX_TEXTS).optional().describe('Texts to embed'),
    project_id: z
      .string()
      .optional()
      .describe('ID of the project that the tokens are metered to. By default not metered.'),
  })
  .refine(({ input, inputs }) => input !== undefined || inputs !== undefined, {
    message: 'is required if inputs is not set',
    path: ['input'],
  })
  .meta({ id: 'EmbeddingsInput', example: { input: 'Orders can be returned within 30 days.' } })

const Vector = z.array(z.number()).describe('L2-normalized')

export const Embeddings = z
  .object({
    embedding: Vector.optional().describe('Vector of `input`'),
    embeddings: z.array(Vector).optional().describe('Vectors of `inputs` in order'),
    model: z.string(),
    dimensions: z.int(),
  })
  .meta({ id: 'Embeddings' })

export const EmbeddingConfig = z
  .object({
    configured: z.boolean().describe('Whether an embedding model is configured'),
    provider: z.string().nullable(),
    model: z.string().nullable(),
    dimensions: z.int().nullable(),
    reindex: z
      .object({
        pending: z.int().describe('Number of documents without vectors of this model'),
        pending_words: z.int().describe('Number of chunks whose words are of another language or release'),
      })
      .describe('Reindex progress'),
  })
  .meta({ id: 'EmbeddingConfig' })
