import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const ruleErrors = {
  CONVERTER_FAILED: {
    status: 422,
    description:
      'Ingestion converter failed, or deferred where not allowed (agent converters always; tool converters under wait=true)',
    message: 'The converter failed',
    hint: 'Fix the converter or its rule (see meta.cause), then retry with POST /documents/{document_id}/ingest.',
  },
  CONVERTER_OUTPUT_INVALID: {
    status: 422,
    description: 'Converter output not a string, a pages array of text and page_number, or a pending status object',
    message: 'The converter returned neither text nor pages',
    hint: 'Return a string, or pages with text and page_number, from the converter, then retry.',
  },
  FILE_DOWNLOAD_URL_NOT_CONFIGURED: {
    status: 500,
    description: 'Rule with download_url delivery needs the deployment base URL set',
  },
  INGESTION_RULE_GLOB_CONFLICT: {
    status: 409,
    description: 'Rule for this content_type_glob exists',
    message:
      'An ingestion rule with content_type_glob {content_type_glob} and path_prefix {path_prefix} already exists',
    hint: 'Update the existing rule (GET /ingestion-rules), or use another path_prefix.',
  },
  INGESTION_RULE_VALIDATION_FAILED: {
    status: 400,
    description:
      'Rule invalid (tool_id and agent_id both or neither; client tool; soat/mcp tool without action; bad MIME glob; preset_parameters with reserved key file or callback)',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof ruleErrors> {}
}
