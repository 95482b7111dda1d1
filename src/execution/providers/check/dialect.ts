import type { Services } from '#core/base/services.ts'
import { type Access, resolveAccess } from '../access.ts'
import { openCredentials, providerSettings } from '../config.ts'
import type { Dialect, ProviderRow } from '../model.ts'

const TIMEOUT_MS = 10_000
/** A name that no server has: the refusal of the call shows the form of its errors and costs nothing. */
const NO_MODEL = 'muster-check-no-such-model'

/** What an endpoint shows of its maker: headers and entries of its listing, and an error. */
type Evidence = { headers: Headers; models: Record<string, unknown>[]; error: string }

const owner =
  (name: RegExp) =>
  ({ models }: Evidence) =>
    models.some(({ owned_by }) => name.test(`${owned_by ?? ''}`))
const field =
  (...names: string[]) =>
  ({ models }: Evidence) =>
    models.some(model => names.every(name => model[name] !== undefined))
const header =
  (name: RegExp, value = /^/) =>
  ({ headers }: Evidence) =>
    [...headers].some(([key, text]) => name.test(key) && value.test(text))
const error = (pattern: RegExp) => (evidence: Evidence) => pattern.test(evidence.error)

/** Whether an error has the form of vLLM. */
const isVllmError = (evidence: Evidence): boolean =>
  error(/"object":\s*"error"/)(evidence) && error(/"type":\s*"NotFoundError"/)(evidence)

/** Marks of each dialect; gateways first, because they pass on the marks of their vendors. */
const MARKS: readonly (readonly [Dialect, readonly ((evidence: Evidence) => boolean)[]])[] = [
  ['litellm', [header(/^x-litellm-/), error(/litellm\./)]],
  ['openrouter', [field('pricing', 'top_provider'), field('canonical_slug'), error(/openrouter/i)]],
  ['llamacpp', [header(/^server$/, /^llama\.cpp/), owner(/^llamacpp$/)]],
  ['vllm', [owner(/^vllm$/), field('max_model_len'), isVllmError]],
  ['lmstudio', [owner(/^organization_owner$/)]],
  ['ollama', [owner(/^library$/)]],
  ['mistral', [owner(/^mistralai$/), header(/^mistral-/)]],
  ['deepseek', [owner(/^deepseek$/), header(/^x-ds-/)]],
  ['kimi', [owner(/^moonshot/), header(/^msh-/)]],
  ['openai', [owner(/^(openai|system|openai-internal)$/), header(/^openai-/)]],
]

const TYPES = new Set<ProviderRow['provider']>(['custom', 'gateway', 'ollama'])

/**
 * Returns the dialect that an OpenAI-compatible endpoint seems to have; null if it has the configured one, or shows no mark.
 * @throws AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND
 */
export async function proposedDialect(
  services: Services,
  provider: ProviderRow,
  signal: AbortSignal,
): Promise<Dialect | null> {
  if (!TYPES.has(provider.provider)) return null
  const access = await resolveAccess(services, provider)
  const configured = providerSettings(provider, openCredentials(services, provider)).dialect
  const found = dialectOf(await evidenceOf(access, signal))
  return found === configured ? null : found
}

const dialectOf = (evidence: Evidence): Dialect | null =>
  MARKS.find(([, marks]) => marks.some(isMarked => isMarked(evidence)))?.[0] ?? null

async function evidenceOf(access: Access, closed: AbortSignal): Promise<Evidence> {
  const listing = await requestText(access, '/models', closed)
  const models = modelsIn(listing?.text ?? '')
  const evidence = {
    headers: listing?.headers ?? new Headers(),
    models,
    error: listing?.ok === false ? listing.text : '',
  }
  if (dialectOf(evidence) !== null) return evidence
  const refused = await requestText(access, '/chat/completions', closed, { model: NO_MODEL, messages: [] })
  const headers = new Headers([...evidence.headers, ...(refused?.headers ?? [])])
  return { ...evidence, headers, error: refused?.ok === false ? refused.text : evidence.error }
}

async function requestText(
  { baseUrl, credential, headers, fetch }: Access,
  path: string,
  closed: AbortSignal,
  body?: object,
) {
  try {
    const response = await fetch(`${baseUrl}${path}`, {
      method: body ? 'POST' : 'GET',
      headers: {
        accept: 'application/json',
        ...(body && { 'content-type': 'application/json' }),
        ...(credential.kind === 'key' && { authorization: `Bearer ${credential.key}` }),
        ...headers,
      },
      body: body && JSON.stringify(body),
      redirect: 'manual',
      signal: AbortSignal.any([closed, AbortSignal.timeout(TIMEOUT_MS)]),
    })
    return { ok: response.ok, headers: response.headers, text: await response.text() }
  } catch (failure) {
    if (closed.aborted) throw failure
    return null
  }
}

function modelsIn(text: string): Record<string, unknown>[] {
  try {
    const { data } = JSON.parse(text) as { data?: unknown }
    return Array.isArray(data) ? data.filter(each => typeof each === 'object' && each !== null) : []
  } catch {
    return []
  }
}
