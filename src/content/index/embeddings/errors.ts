import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const embeddingErrors = {
  EMBEDDING_NOT_CONFIGURED: {
    status: 503,
    description: 'Embedding provider and model not configured',
    message: 'No embedding model is configured in this deployment',
    hint: 'Have the operator set EMBEDDING_PROVIDER and EMBEDDING_MODEL; until then searches use words only.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof embeddingErrors> {}
}
