import { z } from 'zod'
import { refuseDependents, removeRow } from '../../core/api/dependents.ts'
import { AppError, RecordedFailure, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { anyOf, booleanQuery, listTable, pageOf, pageOfArray, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { sql, substring } from '../../core/db/sql.ts'
import { secretKind } from '../../identity/secrets/model.ts'
import { checkTokens, tokenIds } from '../../identity/secrets/resolve.ts'
import {
  checkCredential,
  checkNothingFollows,
  checkProvider,
  destinationOf,
  openCredentials,
  sealConfig,
  tokenTexts,
} from './config.ts'
import { listModels } from './listing.ts'
import {
  AiProvider,
  AiProviderInput,
  AiProviderPatch,
  aiProviderKind,
  PROVIDER_TYPES,
  ProviderModel,
  type ProviderRow,
} from './model.ts'
import { modelClient } from './models.ts'
import { insertProvider, type ProviderValues, updateProvider } from './store.ts'

const tag = 'AI providers'

type Draft = Pick<ProviderRow, 'name' | 'provider' | 'default_model' | 'secret_id' | 'base_url' | 'config'>

/** Ids of the secrets that a provider names, each once. */
const secretsOf = ({ secret_id, config }: Pick<Draft, 'secret_id' | 'config'>): string[] => [
  ...new Set([...(secret_id ? [secret_id] : []), ...tokenIds(tokenTexts(config))]),
]

/**
 * Validates what a write would leave and turns it into columns. `stored` is the row before; `given` names what the body
 * holds, so that a patch does not trip over references it leaves alone. Naming a secret, and changing where a named one
 * is sent, needs the right to use it: who may write a provider may not thereby send any secret to an address of its own.
 * Raises VALIDATION_FAILED, INVALID_TEMPLATE_TOKEN, FORBIDDEN, SECRET_NOT_FOUND, AI_PROVIDER_MISCONFIGURED.
 */
async function valuesOf(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  target: { id: string; project_id: string },
  draft: Draft,
  stored: ProviderRow | null,
  given: { secret_id?: unknown; config?: unknown },
): Promise<ProviderValues> {
  const { project_id } = target
  const base_url = draft.base_url?.replace(/\/+$/, '') ?? null
  const wanted = { ...draft, base_url }
  checkProvider(wanted)
  const nothing = { config: {}, headers: {} }
  const parted =
    given.config === undefined && stored
      ? { config: stored.config, sealed_credentials: stored.sealed_credentials }
      : sealConfig(services, target, wanted.config, stored ? openCredentials(services, stored) : nothing)
  const secret_ids = secretsOf({ ...wanted, config: parted.config })
  const moved = stored !== null && destinationOf(wanted) !== destinationOf(stored)
  const linked = stored && !moved ? secretsOf(stored) : []
  for (const id of secret_ids)
    if (!linked.includes(id)) allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
  if (moved) checkNothingFollows(wanted)
  // Checked last: a mask that stands for nothing is no credential.
  checkCredential({ ...wanted, config: parted.config }, services.config.PROVIDER_AMBIENT_CREDENTIALS)
  const named = given.secret_id && wanted.secret_id ? [wanted.secret_id] : []
  await checkTokens(tx, project_id, given.config ? tokenTexts(parted.config) : [], named)
  return { ...wanted, ...parted, secret_ids }
}

const listAiProviders = operation({
  id: 'listAiProviders',
  method: 'get',
  path: '/ai-providers',
  summary: 'List AI providers',
  tag,
  action: 'ai-providers:ListAiProviders',
  lists: aiProviderKind,
  query: z.object({ name: textFilter, provider: anyOf(PROVIDER_TYPES), secret_id: textFilter }),
  answers: { 200: pageOf(AiProvider) },
  run: context => {
    const { name, provider, secret_id } = context.query
    return listTable<ProviderRow>(context, {
      table: aiProviderKind.table,
      columns: aiProviderKind.columns,
      where: [
        name !== undefined && sql.fragment`t.name ilike ${substring(name)}`,
        provider && sql.fragment`t.provider = any(${sql.array(provider, 'text')})`,
        secret_id !== undefined && sql.fragment`t.secret_id = ${secret_id}`,
      ],
      present: aiProviderKind.present,
    })
  },
})

const createAiProvider = operation({
  id: 'createAiProvider',
  method: 'post',
  path: '/ai-providers',
  summary: 'Create an AI provider',
  description: 'Naming a secret, in `secret_id` or in a header, needs `secrets:UseSecret` on it.',
  tag,
  action: 'ai-providers:CreateAiProvider',
  alsoActions: ['secrets:UseSecret'],
  creates: aiProviderKind,
  body: AiProviderInput,
  answers: { 201: AiProvider },
  raises: ['SECRET_NOT_FOUND', 'AI_PROVIDER_MISCONFIGURED', 'INVALID_TEMPLATE_TOKEN'],
  async run(context) {
    const { tx, body } = context
    const project = context.project as string
    const target = { id: newId(aiProviderKind.prefix), project_id: project }
    const draft = {
      ...body,
      secret_id: body.secret_id ?? null,
      base_url: body.base_url ?? null,
      config: body.config ?? null,
    }
    const values = await valuesOf(context, target, draft, null, body)
    const record = aiProviderKind.present(await insertProvider(tx, target.id, project, values))
    tx.emit(aiProviderKind, 'created', { id: (record as { id: string }).id, project_id: project }, { data: record })
    return record
  },
})

const getAiProvider = itemOperation(aiProviderKind, {
  id: 'getAiProvider',
  method: 'get',
  path: '/ai-providers/{ai_provider_id}',
  summary: 'Read an AI provider',
  tag,
  action: 'ai-providers:GetAiProvider',
  answers: { 200: AiProvider },
  run: async ({ resource }) => aiProviderKind.present(resource),
})

const patchAiProvider = itemOperation(aiProviderKind, {
  id: 'updateAiProvider',
  method: 'patch',
  path: '/ai-providers/{ai_provider_id}',
  summary: 'Change an AI provider',
  description:
    'Acts on the next model call. Naming another secret needs `secrets:UseSecret` on it, and changing where requests go (type, `base_url`, region, location, project or resource name) needs it on every secret that stays. A credential value sent back as `***` keeps the stored one, unless requests go elsewhere: then it must be given anew.',
  tag,
  action: 'ai-providers:UpdateAiProvider',
  alsoActions: ['secrets:UseSecret'],
  body: AiProviderPatch,
  answers: { 200: AiProvider },
  raises: ['SECRET_NOT_FOUND', 'AI_PROVIDER_MISCONFIGURED', 'INVALID_TEMPLATE_TOKEN'],
  async run(context) {
    const { tx, body, resource } = context
    const row = await aiProviderKind.find(tx, resource.id, true)
    if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    const draft = {
      name: body.name ?? row.name,
      provider: body.provider ?? row.provider,
      default_model: body.default_model ?? row.default_model,
      secret_id: body.secret_id === undefined ? row.secret_id : body.secret_id,
      base_url: body.base_url === undefined ? row.base_url : body.base_url,
      config: body.config === undefined ? row.config : body.config,
    }
    const values = await valuesOf(context, row, draft, row, body)
    const record = aiProviderKind.present(await updateProvider(tx, row.id, values))
    tx.emit(
      aiProviderKind,
      'updated',
      { id: (record as { id: string }).id, project_id: row.project_id },
      { data: record },
    )
    return record
  },
})

const deleteAiProvider = itemOperation(aiProviderKind, {
  id: 'deleteAiProvider',
  method: 'delete',
  path: '/ai-providers/{ai_provider_id}',
  summary: 'Delete an AI provider',
  description: 'Refused while an agent names it.',
  tag,
  action: 'ai-providers:DeleteAiProvider',
  query: z.object({ force: booleanQuery.optional() }),
  answers: { 204: null },
  raises: ['AI_PROVIDER_HAS_DEPENDENTS'],
  async run({ tx, query, resource }) {
    const row = await aiProviderKind.find(tx, resource.id, true)
    if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    await refuseDependents(tx, aiProviderKind, row.id, {
      force: query.force ?? false,
      code: 'AI_PROVIDER_HAS_DEPENDENTS',
    })
    await removeRow(tx, aiProviderKind, row)
  },
})

const listAiProviderModels = itemOperation(aiProviderKind, {
  id: 'listAiProviderModels',
  method: 'get',
  path: '/ai-providers/{ai_provider_id}/models',
  summary: 'List the models a provider offers',
  description: 'Asked of the vendor each time, in its order.',
  tag,
  action: 'ai-providers:ListAiProviderModels',
  paged: true,
  timed: false,
  answers: { 200: pageOf(ProviderModel).extend({ provider: z.enum(PROVIDER_TYPES) }) },
  raises: ['MODEL_LISTING_UNSUPPORTED', 'AI_PROVIDER_MISCONFIGURED', 'MODEL_LISTING_FAILED', 'SECRET_NOT_FOUND'],
  async run({ services, resource, page, request }) {
    const models = await listModels(services, resource, request.closed)
    return { ...pageOfArray(models, page), provider: resource.provider }
  },
})

const CheckInput = z
  .strictObject({ model: z.string().min(1).max(255).nullable().optional() })
  .meta({ id: 'AiProviderCheckInput' })

const CheckResult = z
  .object({
    ok: z.boolean(),
    model: z.string(),
    latency_ms: z.int(),
    error: RecordedFailure.nullable(),
  })
  .meta({ id: 'AiProviderCheck' })

const checkAiProvider = itemOperation(aiProviderKind, {
  id: 'checkAiProvider',
  method: 'post',
  path: '/ai-providers/{ai_provider_id}/check',
  summary: 'Try a provider with the smallest completion',
  description: 'One attempt without retries. A failure is in `error`, as a turn would record it.',
  tag,
  action: 'ai-providers:CheckAiProvider',
  body: CheckInput,
  bodyOptional: true,
  answers: { 200: CheckResult },
  transaction: false,
  async run({ services, resource, body, request }) {
    const model = body?.model ?? resource.default_model
    const started = performance.now()
    const error = await tryProvider({ services, resource, model, signal: request.closed })
    return { ok: error === null, model, latency_ms: Math.round(performance.now() - started), error }
  },
})

async function tryProvider(asked: {
  services: Context['services']
  resource: ProviderRow
  model: string
  signal: AbortSignal
}) {
  const { services, resource, model, signal } = asked
  try {
    const { attemptCall } = await import('./attempt.ts')
    const client = await modelClient(services, resource)
    const outcome = await attemptCall(services, client, resource, model, {
      system: null,
      messages: [{ role: 'user', content: 'ping' }],
      temperature: null,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      max_output_tokens: client.smallestAnswer,
      signal,
    })
    if (outcome.ok) return null
    const { code, message, meta } = outcome.failure
    return { code, message, meta }
  } catch (error) {
    if (error instanceof AppError) return error.recorded()
    throw error
  }
}

export const aiProviderOperations: Operation[] = [
  listAiProviders,
  createAiProvider,
  getAiProvider,
  patchAiProvider,
  deleteAiProvider,
  listAiProviderModels,
  checkAiProvider,
]
