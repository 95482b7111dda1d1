import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { checkSpend } from '#control/quotas/spend.ts'
import type { UsedAnswer } from '#control/usage/meter.ts'
import { containsFilter, equalsFilter, oneOf } from '#core/api/filters.ts'
import type { Values } from '#core/api/kind.ts'
import { pageOf, pageOfArray } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation } from '#core/api/operation.ts'
import { warningsField } from '#core/api/warnings.ts'
import { AppError, RecordedFailure } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { addressProblems } from '#core/net/refused-address.ts'
import { resource } from '#core/resources/resource.ts'
import { secretKind } from '#identity/secrets/model.ts'
import { checkTokens, tokenIds } from '#identity/secrets/resolve.ts'
import { attemptModel } from './call.ts'
import { estimateCheck, recordCheckUsage, runMatrix } from './check/run-check.ts'
import {
  checkCredential,
  checkProvider,
  destinationOf,
  openCredentials,
  requireNewCredentials,
  sealConfig,
  tokenTexts,
} from './config.ts'
import { listModels } from './listing.ts'
import {
  AiProviderInput,
  AiProviderPatch,
  AiProviderProfile,
  AiProviderWithWarnings,
  aiProviderKind,
  Matrix,
  PROVIDER_TYPES,
  ProviderModel,
  type ProviderRow,
} from './model.ts'
import { modelClient } from './models.ts'
import { expiryOf, validFindings } from './profile.ts'
import { dropLastCheck, findLastCheck } from './store.ts'

const providers = resource(aiProviderKind, { path: '/ai-providers', tag: 'AI providers' })

type Draft = Pick<ProviderRow, 'name' | 'provider' | 'default_model' | 'secret_id' | 'base_url' | 'config'>

/** Returns the ids of the secrets of a provider without duplicates. */
const secretIds = ({ secret_id, config }: Pick<Draft, 'secret_id' | 'config'>): string[] => [
  ...new Set([...(secret_id ? [secret_id] : []), ...tokenIds(tokenTexts(config))]),
]

/**
 * Validates a provider as it would be stored and returns its columns. `given` contains the fields of the body, so that
 * a patch does not fail for unchanged references. Adding a secret, or changing the destination of one, requires
 * permission to use it: otherwise a writer of providers could send any secret to another address.
 * @throws VALIDATION_FAILED, INVALID_TEMPLATE_TOKEN, FORBIDDEN, SECRET_NOT_FOUND, AI_PROVIDER_MISCONFIGURED
 */
async function providerColumns(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  target: { id: string; project_id: string },
  draft: Draft,
  stored: ProviderRow | null,
  given: { secret_id?: unknown; config?: unknown },
): Promise<Values<ProviderRow>> {
  const { project_id } = target
  const base_url = draft.base_url?.replace(/(?<!\/)\/+$/, '') ?? null
  const next = { ...draft, base_url }
  checkProvider(next)
  const noCredentials = { config: {}, headers: {} }
  const splitConfig =
    given.config === undefined && stored
      ? { config: stored.config, sealed_credentials: stored.sealed_credentials }
      : sealConfig(services, target, next.config, stored ? openCredentials(services, stored) : noCredentials)
  const secret_ids = secretIds({ ...next, config: splitConfig.config })
  const isMoved = stored !== null && destinationOf(next) !== destinationOf(stored)
  const linked = stored && !isMoved ? secretIds(stored) : []
  for (const id of secret_ids)
    if (!linked.includes(id)) allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
  if (isMoved) requireNewCredentials(next)
  // Checked last: a mask without a stored value is not a credential.
  checkCredential({ ...next, config: splitConfig.config }, services.config.PROVIDER_AMBIENT_CREDENTIALS)
  const newSecretIds = given.secret_id && next.secret_id ? [next.secret_id] : []
  await checkTokens(tx, project_id, given.config ? tokenTexts(splitConfig.config) : [], newSecretIds)
  return { ...next, ...splitConfig, secret_ids }
}

/** Fields on which the findings about a provider depend. */
const PROFILED = ['provider', 'base_url', 'default_model', 'secret_id', 'config'] as const

/** Returns the warning about a `base_url` that the egress rule blocks. */
const showWarnings = ({ base_url }: ProviderRow, { services }: Pick<Context<any>, 'services'>): object =>
  warningsField(addressProblems(services, 'base_url', base_url))

const CheckInput = z
  .strictObject({
    model: z.string().min(1).max(255).nullish().describe('Model to call. Default default_model.'),
    matrix: z
      .boolean()
      .optional()
      .describe(
        'Whether to try each capability, with about 13 small calls. Requires `ai-providers:UpdateAiProvider`. Default false.',
      ),
  })
  .meta({ id: 'AiProviderCheckInput' })

const CheckResult = z
  .object({
    ok: z.boolean().describe('Whether the provider responded'),
    model: z.string(),
    latency_ms: z.int().describe('Latency in milliseconds'),
    error: RecordedFailure.nullable(),
    checks: Matrix.shape.checks.optional().describe('Results by capability, with `matrix`'),
    proposed_dialect: Matrix.shape.proposed_dialect.optional(),
  })
  .meta({ id: 'AiProviderCheck' })

const CheckEstimate = z
  .object({
    model: z.string(),
    calls: z.int().describe('Number of model calls'),
    input_tokens: z.int().describe('Expected input tokens'),
    output_tokens: z.int().describe('Expected output tokens, more for a model that thinks before each answer'),
    cost_usd: z.number().nullable().describe('Expected cost in US dollars; null without prices'),
  })
  .meta({ id: 'AiProviderCheckEstimate' })

async function checkProviderCall(options: {
  services: Context['services']
  resource: ProviderRow
  model: string
  signal: AbortSignal
}) {
  const { services, resource, model, signal } = options
  try {
    const client = await modelClient(services, resource)
    const request = {
      system: null,
      messages: [{ role: 'user' as const, content: 'ping' }],
      temperature: null,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      store: false,
      max_output_tokens: client.smallestAnswer,
      signal,
      onUnused: (answer: UsedAnswer) => recordCheckUsage(services, resource, model, answer),
    }
    const outcome = await attemptModel(services, resource, model, request, { retries: 0 })
    if (outcome.ok) {
      recordCheckUsage(services, resource, model, outcome.answer)
      return null
    }
    const { code, message, meta } = outcome.failure
    return { code, message, meta }
  } catch (error) {
    if (error instanceof AppError) return error.recorded()
    throw error
  }
}

const raises = ['SECRET_NOT_FOUND', 'AI_PROVIDER_MISCONFIGURED', 'INVALID_TEMPLATE_TOKEN'] as const

export const aiProviderOperations: Operation[] = [
  // ai_providers_project serves the order.
  providers.list({
    summary: 'List AI providers',
    filters: {
      name: containsFilter('name'),
      provider: oneOf('provider', PROVIDER_TYPES),
      secret_id: equalsFilter('secret_id'),
    },
  }),
  providers.create({
    summary: 'Create an AI provider',
    description: 'A secret in `secret_id` or in a header requires `secrets:UseSecret` on it.',
    alsoActions: ['secrets:UseSecret'],
    body: AiProviderInput,
    warnings: ({ services, body }) => addressProblems(services, 'base_url', body.base_url),
    validate({ services, body }) {
      const { secret_id = null, base_url = null, config = null } = body
      checkProvider({ ...body, secret_id, base_url, config })
      checkCredential({ ...body, secret_id, base_url, config }, services.config.PROVIDER_AMBIENT_CREDENTIALS)
    },
    answers: { 201: AiProviderWithWarnings },
    show: showWarnings,
    raises: [...raises],
    async make(context) {
      const { tx, body, project } = context
      const target = { id: newId(aiProviderKind.prefix), project_id: project }
      const { secret_id = null, base_url = null, config = null } = body
      const values = await providerColumns(context, target, { ...body, secret_id, base_url, config }, null, body)
      return aiProviderKind.insert(tx, { ...values, ...target })
    },
  }),
  providers.get({ summary: 'Get an AI provider' }),
  providers.update({
    summary: 'Update an AI provider',
    description:
      'Applies to the next model call. Omitted fields are unchanged. Another secret requires `secrets:UseSecret` on it; a changed destination (type, `base_url`, region, location, project or resource name) requires it on every remaining secret. A credential sent as `***` keeps the stored value, unless the destination changes: then it must be provided again.',
    alsoActions: ['secrets:UseSecret'],
    body: AiProviderPatch,
    answers: { 200: AiProviderWithWarnings },
    show: showWarnings,
    raises: [...raises],
    async change(next, context) {
      const { stored, body } = context
      const columns = { ...next, ...(await providerColumns(context, stored, next, stored, body)) }
      if (PROFILED.every(name => isDeepStrictEqual(columns[name], stored[name]))) return columns
      await dropLastCheck(context.tx, stored.id)
      return { ...columns, profile: {} }
    },
  }),
  providers.remove({
    summary: 'Delete an AI provider',
    description: 'Refused while an agent or a model route uses the provider.',
    dependents: 'AI_PROVIDER_HAS_DEPENDENTS',
  }),
  itemOperation(aiProviderKind, {
    id: 'listAiProviderModels',
    method: 'get',
    path: '/ai-providers/{ai_provider_id}/models',
    summary: 'List models of a provider',
    description: 'Requested from the vendor each time, in its order.',
    tag: 'AI providers',
    action: 'ai-providers:ListAiProviderModels',
    paged: true,
    timed: false,
    answers: { 200: pageOf(ProviderModel).extend({ provider: z.enum(PROVIDER_TYPES) }) },
    raises: ['MODEL_LISTING_UNSUPPORTED', 'AI_PROVIDER_MISCONFIGURED', 'MODEL_LISTING_FAILED', 'SECRET_NOT_FOUND'],
    async run({ services, resource, page, request }) {
      const models = await listModels(services, resource, request.closed)
      return { ...pageOfArray(models, page), provider: resource.provider }
    },
  }),
  providers.action('check', {
    summary: 'Check an AI provider',
    description:
      "Makes the smallest possible completion, in one attempt without retries; token and cost quotas count it. A failure is returned in `error`, as a turn would record it. With `matrix`, tries each capability with the provider's credential, for at most 4 minutes, and stores the result in the profile of the provider; `ok`, `latency_ms` and `error` are then of the whole check and its plain call.",
    alsoActions: ['ai-providers:UpdateAiProvider'],
    body: CheckInput,
    bodyOptional: true,
    answers: { 200: CheckResult },
    raises: ['QUOTA_EXCEEDED', 'QUOTA_UNENFORCEABLE', 'PROJECT_PAUSED'],
    transaction: false,
    checkedBy: 'estimateAiProviderCheck',
    async run({ services, resource, body, request, allow }) {
      const model = body?.model ?? resource.default_model
      const started = performance.now()
      const latency = () => Math.round(performance.now() - started)
      if (body?.matrix) {
        allow('ai-providers:UpdateAiProvider', { kind: aiProviderKind, row: resource })
        const { checks, proposed_dialect, failure } = await runMatrix(services, resource, model, request.closed)
        return { ok: failure === null, model, latency_ms: latency(), error: failure, checks, proposed_dialect }
      }
      await checkSpend(services, { project_id: resource.project_id, agent_id: null, actor_id: null })
      const error = await checkProviderCall({ services, resource, model, signal: request.closed })
      return { ok: error === null, model, latency_ms: latency(), error }
    },
  }),
  providers.action('estimate-check', {
    id: 'estimateAiProviderCheck',
    summary: 'Estimate the cost of a check',
    description:
      'Returns the calls and tokens of a check with this body, and their cost at current prices. Calls no vendor.',
    action: 'ai-providers:CheckAiProvider',
    reads: true,
    body: CheckInput,
    bodyOptional: true,
    answers: { 200: CheckEstimate },
    transaction: false,
    run: ({ services, resource, body }) =>
      estimateCheck(services, resource, body?.model ?? resource.default_model, body?.matrix === true),
  }),
  itemOperation(aiProviderKind, {
    id: 'getAiProviderProfile',
    method: 'get',
    path: '/ai-providers/{ai_provider_id}/profile',
    summary: 'Get the profile of an AI provider',
    description:
      'Returns the settings that its models refuse, which calls leave out, and the last check by capabilities. A change of type, `base_url`, `default_model`, `secret_id` or `config` deletes it.',
    command: ['ai-providers', 'profile', 'get'],
    tag: 'AI providers',
    action: 'ai-providers:GetAiProvider',
    answers: { 200: AiProviderProfile },
    run: async ({ db, services, resource }) => ({
      findings: validFindings(resource, services.clock.now()).map(({ model, finding, by, at }) => ({
        model,
        finding,
        found_by: by,
        found_at: at,
        expires_at: expiryOf({ by, at })?.toISOString() ?? null,
      })),
      last_check: await findLastCheck(db, resource.id),
    }),
  }),
  itemOperation(aiProviderKind, {
    id: 'deleteAiProviderProfile',
    method: 'delete',
    path: '/ai-providers/{ai_provider_id}/profile',
    summary: 'Reset the profile of an AI provider',
    description: 'Calls include the refused settings again until they are refused.',
    command: ['ai-providers', 'profile', 'delete'],
    tag: 'AI providers',
    action: 'ai-providers:UpdateAiProvider',
    answers: { 204: null },
    async run({ tx, resource }) {
      await aiProviderKind.lock(tx, resource.id)
      await dropLastCheck(tx, resource.id)
      // Changes `updated_at`, so that all processes drop the findings in their memory.
      await aiProviderKind.update(tx, resource.id, { profile: {} })
    },
  }),
]
