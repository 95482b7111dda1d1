import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const ruleErrors = {
  CONVERTER_FAILED: {
    status: 422,
    description:
      'Ingestion converter failed, or deferred asynchronously where not allowed (agent converters always; tool converters under wait=true)',
    message: 'The converter failed',
    hint: 'meta.cause says what the converter ended with; fix it or its rule, then repeat with POST /documents/{document_id}/ingest.',
  },
  CONVERTER_OUTPUT_INVALID: {
    status: 422,
    description: 'Converter output not a string, a pages array of text and page_number, or a pending status object',
    message: 'The converter answered neither a text nor pages',
    hint: 'Have the converter answer a string, or pages of text and page_number, and repeat.',
  },
  FILE_DOWNLOAD_URL_NOT_CONFIGURED: {
    status: 500,
    description: 'Rule with download_url delivery needs the deployment base URL set',
  },
  INGESTION_RULE_GLOB_CONFLICT: {
    status: 409,
    description: 'Rule for this content_type_glob exists',
    message: 'Another rule has the content_type_glob {content_type_glob} and the path_prefix {path_prefix}',
    hint: 'Change the rule that is there (GET /ingestion-rules lists them), or give this one another path_prefix.',
  },
  INGESTION_RULE_VALIDATION_FAILED: {
    status: 400,
    description:
      'Rule invalid (tool_id and agent_id both or neither; client tool; soat/mcp tool without action; bad MIME glob; preset_parameters with reserved key file or callback)',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof ruleErrors> {}
}
