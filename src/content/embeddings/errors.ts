import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const embeddingErrors = {
  EMBEDDING_NOT_CONFIGURED: {
    status: 503,
    description: 'Embedding provider and model not configured',
    message: 'The deployment has no embedding model',
    hint: 'The operator sets EMBEDDING_PROVIDER and EMBEDDING_MODEL; until then searches go by words alone.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof embeddingErrors> {}
}
