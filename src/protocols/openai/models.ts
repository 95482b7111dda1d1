import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { COMPLETE_ACTION } from '#conversation/chats/complete.ts'
import { chatKind } from '#conversation/chats/model.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import { canSeeProject, isAllowed, visibleRows } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import { type Context, operation } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { projectExists } from '#core/invoke/resolve.ts'
import { agentKind } from '#execution/agents/model.ts'
import { modelRouteKind } from '#execution/model-routes/model.ts'
import { aiProviderKind } from '#execution/providers/model.ts'
import { invokeOperation, type OpenAiSession, SEND_ACTION } from './session.ts'

/** Most models in the list. */
const MAX_MODELS = 1000
const CACHE_MS = 10_000
const MAX_CACHED = 1000

const Model = z.object({ id: z.string(), name: z.string().nullable(), kind: z.string(), created: z.number() })
const modelRow = sql.type(Model)
type Model = z.output<typeof Model>

/** A model by the prefix of its ID. */
export type ModelRef =
  | { kind: 'agent'; id: string }
  | { kind: 'agent_name'; name: string }
  | { kind: 'chat'; id: string }
  | { kind: 'route'; id: string }
  | { kind: 'provider'; id: string; model: string }

export const modelNotFound = (model: string): AppError =>
  new AppError('RESOURCE_NOT_FOUND', {
    message: `Model ${model.slice(0, 200)} not found`,
    meta: { id: model.slice(0, 200), param: 'model' },
  })

/** Returns what a model ID refers to. @throws RESOURCE_NOT_FOUND for an unknown form */
export function parseModelId(model: string): ModelRef {
  if (isIdOf(agentKind, model)) return { kind: 'agent', id: model }
  if (model.startsWith('agent:')) return { kind: 'agent_name', name: model.slice('agent:'.length) }
  if (isIdOf(chatKind, model)) return { kind: 'chat', id: model }
  if (isIdOf(modelRouteKind, model)) return { kind: 'route', id: model }
  const cut = model.indexOf('/')
  const id = model.slice(0, cut)
  if (cut > 0 && isIdOf(aiProviderKind, id) && model.length > cut + 1)
    return { kind: 'provider', id, model: model.slice(cut + 1) }
  throw modelNotFound(model)
}

/** Returns the condition of the rows `t` of a kind that a caller may use by an action. */
const usable = (caller: Caller, project: string | null, action: string, type: string): Fragment =>
  visibleRows(caller, { action, type, project }, { project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows

/** Returns the condition of the rows `t` whose projects allow completions without a chat. */
function completable(caller: Caller, project: string | null): Fragment {
  if (project === null || caller.end_user) return sql.fragment`false`
  const target = { kind: chatKind, project_id: project }
  return isAllowed(caller, COMPLETE_ACTION, target) ? sql.fragment`t.project_id = ${project}` : sql.fragment`false`
}

/** The models that the record of a provider `t` lists. */
const listedModels = sql.fragment`case jsonb_typeof(t.config -> 'models') when 'object' then t.config -> 'models' else '{}' end`
const created = sql.fragment`extract(epoch from t.created_at)::int as created`

/** Returns the condition of agents `t` that the caller may run, in sessions or without one. */
function runnable(caller: Caller, project: string | null): Fragment {
  if (caller.end_user) return sql.fragment`t.id = any(${sql.array([...caller.end_user.agent_ids], 'text')})`
  const inSessions = { kind: sessionKind, project_id: project }
  return project !== null && isAllowed(caller, SEND_ACTION, inSessions)
    ? sql.fragment`t.project_id = ${project}`
    : usable(caller, project, 'agents:CreateAgentGeneration', agentKind.name)
}

const list = {
  method: 'get',
  path: '/openai/v1/models',
  summary: 'List models',
  tag: 'OpenAI',
  query: z.object({ project_id: z.string().optional() }),
  answers: { 200: null },
} as const

/** Lists agents, chats, routes, and the default and listed models of providers. By the indexes of their projects. */
const listOperation = operation({ ...list, id: 'listOpenAiModels', gate: 'any', run: selectModels })

/** Lists the agents of an end user's token. */
const endUserListOperation = operation({
  ...list,
  id: 'listOpenAiModelsOfEndUser',
  action: SEND_ACTION,
  about: sessionKind,
  endUser: { scope: 'chat', presented: true },
  run: selectModels,
})

function selectModels({ caller, db, query }: Pick<Context<{ project_id?: string }>, 'caller' | 'db' | 'query'>) {
  const project = query.project_id ?? caller.project_id
  const open = completable(caller, project)
  const chats = caller.end_user ? sql.fragment`false` : usable(caller, project, COMPLETE_ACTION, chatKind.name)
  return db.any(modelRow`
    (select t.id, t.name, 'agent' as kind, ${created} from agents t where ${runnable(caller, project)}
      order by t.created_at desc, t.id desc limit ${MAX_MODELS})
    union all (select t.id, t.name, 'chat', ${created} from chats t where ${chats}
      order by t.created_at desc, t.id desc limit ${MAX_MODELS})
    union all (select t.id, t.name, 'route', ${created} from model_routes t where ${open}
      order by t.id limit ${MAX_MODELS})
    union all (select t.id || '/' || m.model, t.name, 'model', ${created}
      from (select * from ai_providers t where ${open} order by t.created_at desc, t.id desc limit ${MAX_MODELS}) t
      cross join lateral (select t.default_model as model union select jsonb_object_keys(${listedModels})) m
      limit ${MAX_MODELS})
    limit ${MAX_MODELS}`)
}

const cachedModels = processSingleton(
  () => new LRUCache<string, Promise<readonly Model[]>>({ max: MAX_CACHED, ttl: CACHE_MS }),
)

/**
 * Counts the listing of a key without a project in the project that it names. Listings are not calls in a project, and most are
 * answered by the cache.
 */
async function countListing({ services, exchange, caller, project }: OpenAiSession): Promise<void> {
  if (project === null || caller.project_id !== null || !canSeeProject(caller, project)) return
  if (await projectExists({ db: services.pool }, project)) await exchange.request.count?.in(caller, project)
}

/** Returns the models that the caller may use, up to ten seconds old. */
export async function listModels(session: OpenAiSession): Promise<readonly Model[]> {
  await countListing(session)
  const { services, caller, project } = session
  const { type, id } = caller.credential
  const cache = cachedModels(services)
  const key = `${type} ${id} ${caller.end_user?.jti} ${project}`
  const cached = cache.get(key)
  if (cached) return cached
  const models = invokeOperation(session, caller.end_user ? endUserListOperation : listOperation, {}).then(
    ({ body }) => body as readonly Model[],
  )
  cache.set(key, models)
  // A failed read is not cached; a later one may have replaced it.
  models.catch(() => cache.peek(key) === models && cache.delete(key))
  return models
}

export const presentModel = ({ id, name, kind, created }: Model) => ({
  id,
  object: 'model',
  created,
  owned_by: 'project',
  name,
  kind,
})

/** Returns a model by its ID. @throws RESOURCE_NOT_FOUND */
export async function findModel(session: OpenAiSession, id: string): Promise<object> {
  const ref = parseModelId(id)
  const models = await listModels(session)
  const found =
    ref.kind === 'provider'
      ? models.find(model => model.id.startsWith(`${ref.id}/`))
      : ref.kind === 'agent_name'
        ? requireNamed(models, ref.name)
        : models.find(model => model.id === id)
  if (!found) throw modelNotFound(id)
  return { ...presentModel(found), id }
}

/** Returns the only agent with a name. @throws RESOURCE_NOT_FOUND for none and for several */
function requireNamed(models: readonly Model[], name: string): Model {
  const [found, another] = models.filter(model => model.kind === 'agent' && model.name === name)
  if (!found || another) throw modelNotFound(`agent:${name}`)
  return found
}

/** Returns the ID of the only agent with a name that the caller may use. @throws RESOURCE_NOT_FOUND */
export const findAgentByName = async (session: OpenAiSession, name: string): Promise<string> =>
  requireNamed(await listModels(session), name).id
