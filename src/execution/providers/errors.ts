import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const providerErrors = {
  AI_PROVIDER_ERROR: { status: 502, description: 'Upstream AI provider error' },
  AI_PROVIDER_HAS_DEPENDENTS: {
    status: 409,
    description: 'Live references always block; soft dependents (price overrides, usage) block until force=true',
    hint: 'Change or delete the resources that reference the AI provider (meta.counts) first, or repeat with force=true where meta.forcible is true, which deletes them too.',
  },
  AI_PROVIDER_MISCONFIGURED: {
    status: 400,
    description:
      'Provider record lacks required configuration (for example a vertex provider without project or key file, or bedrock/vertex with no credential where deployment credentials are not allowed)',
  },
  AI_PROVIDER_NOT_FOUND: {
    status: 400,
    description: 'Referenced AI provider missing',
    message: 'AI provider {id} not found in this project',
  },
  INVALID_TEMPLATE_TOKEN: {
    status: 400,
    description:
      'Double-curly token other than a secret reference or a context reference, or a context token outside execute.headers / mcp.headers; single braces are for URL path parameters',
  },
  MODEL_LISTING_FAILED: { status: 502, description: 'Provider rejected model listing or answered non-JSON' },
  MODEL_LISTING_UNSUPPORTED: { status: 400, description: 'Provider type cannot enumerate models (azure, ollama)' },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof providerErrors> {}
}
