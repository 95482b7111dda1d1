import { canSeeProject } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { coalescedReads } from '#core/db/coalesced-reads.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { firstProvider } from '#execution/model-routes/store.ts'
import { aiProviderKind } from '#execution/providers/model.ts'
import { modelClient } from '#execution/providers/models.ts'
import { type ChatRow, chatKind } from './model.ts'
import type { CompletionBody } from './openai-format.ts'
import type { CompletionTarget } from './run-completion.ts'
import { findServedChat, findServedProvider, findServedRoute, type ServedTarget } from './store.ts'

type TargetFields = Pick<CompletionBody, 'chat_id' | 'ai_provider_id' | 'model'>

/** Returns the target given by the fields or the model of a request. @throws VALIDATION_FAILED unless it is unique */
function parseTarget({ chat_id, ai_provider_id, model }: TargetFields): TargetFields {
  if (chat_id !== undefined && ai_provider_id !== undefined)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'ai_provider_id', message: 'cannot be combined with chat_id' })
  if (chat_id !== undefined || ai_provider_id !== undefined) return { chat_id, ai_provider_id, model }
  if (model !== undefined && isIdOf(chatKind, model)) return { chat_id: model }
  const cut = model?.indexOf('/') ?? -1
  const provider = model?.slice(0, cut)
  if (provider !== undefined && isIdOf(aiProviderKind, provider) && model?.[cut + 1] !== undefined)
    return { ai_provider_id: provider, model: model.slice(cut + 1) }
  return raiseInvalid({
    code: 'REQUIRED',
    path: 'chat_id',
    message: 'is required unless ai_provider_id is set or model is the ID of a chat or `<ai_provider_id>/<model>`',
  })
}

export type FoundTarget = { target: CompletionTarget; chat: ChatRow | null }

/** Concurrent completions of a tenant share the reads of their targets. */
const targetReads = processSingleton(() => coalescedReads<FoundTarget | null>())

/** Returns a target in one statement, or null if the caller may not read it. */
async function findVisibleTarget(
  services: Services,
  caller: Caller,
  id: string,
  read: (db: Queryable) => Promise<FoundTarget | null>,
): Promise<FoundTarget | null> {
  const tenant = caller.project_id ?? caller.user.id
  const found = await targetReads(services)(`${tenant} ${id}`, () => read(services.pool))
  return found && canSeeProject(caller, found.target.project_id) ? found : null
}

/**
 * Returns the target of a request. A target that the caller may not read counts as missing.
 * @throws VALIDATION_FAILED, CHAT_NOT_FOUND, AI_PROVIDER_NOT_FOUND
 */
export async function findCompletionTarget(
  services: Services,
  caller: Caller,
  body: TargetFields,
): Promise<FoundTarget> {
  const { chat_id, ai_provider_id, model = null } = parseTarget(body)
  if (chat_id !== undefined) {
    const found = await findVisibleTarget(services, caller, chat_id, db => findChatTarget(db, chat_id))
    if (!found) return raise('CHAT_NOT_FOUND', { meta: { id: chat_id } })
    requireModelAllowed(found.target, model)
    return withModel(found, model)
  }
  const id = ai_provider_id as string
  const found = await findVisibleTarget(services, caller, id, async db => {
    const served = isIdOf(aiProviderKind, id) ? await findServedProvider(db, id) : null
    return served && foundWithoutChat(served, served.provider)
  })
  return found ? withModel(found, model) : raise('AI_PROVIDER_NOT_FOUND', { meta: { id } })
}

/** Returns a model route as the target of completions. @throws MODEL_ROUTE_NOT_FOUND */
export async function findRouteTarget(services: Services, caller: Caller, id: string): Promise<FoundTarget> {
  const found = await findVisibleTarget(services, caller, id, async db => {
    const served = await findServedRoute(db, id)
    return served && foundWithoutChat(served, served.route.route)
  })
  return found ?? raise('MODEL_ROUTE_NOT_FOUND', { meta: { id } })
}

const foundWithoutChat = (served: ServedTarget, { project_id }: { project_id: string }): FoundTarget => ({
  chat: null,
  target: { ...served, project_id, model: null },
})

/** Returns a target with another model, if not null. */
const withModel = ({ target, chat }: FoundTarget, model: string | null): FoundTarget => ({
  target: { ...target, model: model ?? target.model },
  chat,
})

async function findChatTarget(db: Queryable, id: string): Promise<(FoundTarget & { chat: ChatRow }) | null> {
  const found = isIdOf(chatKind, id) ? await findServedChat(db, id) : null
  if (!found) return null
  const { chat, served } = found
  return { chat, target: { ...served, project_id: chat.project_id, model: chat.model } }
}

/**
 * Returns a chat with the target of its completions.
 * @param model overrides the model of the chat
 * @throws CHAT_NOT_FOUND
 */
export async function findServedTarget(
  db: Queryable,
  id: string,
  model: string | null,
): Promise<{ target: CompletionTarget; chat: ChatRow }> {
  const found = await findChatTarget(db, id)
  if (!found) return raise('CHAT_NOT_FOUND', { meta: { id } })
  const { chat, target } = found
  return { chat, target: { ...target, model: model ?? target.model } }
}

/**
 * Checks that a target has a provider or a route, and that a route has no model override.
 * @throws VALIDATION_FAILED, AI_PROVIDER_NOT_FOUND
 */
export function requireModelAllowed({ provider, route }: CompletionTarget, model: string | null): void {
  if (provider) return
  if (model !== null)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'model',
      message: 'cannot be set for a chat with a model route',
    })
  // The default route may have been removed before any chat used it.
  if (!route)
    raise('AI_PROVIDER_NOT_FOUND', {
      message: 'The chat has no AI provider, and the project has no default model route',
      meta: { id: null },
    })
}

/**
 * Checks that the first model call can be made.
 * @throws AI_PROVIDER_NOT_FOUND, AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND
 */
export async function requireCallableChat(services: Services, target: CompletionTarget): Promise<void> {
  const first = firstProvider(target)
  if (!first)
    return raise('AI_PROVIDER_NOT_FOUND', { meta: { id: target.route?.route.targets[0].ai_provider_id ?? null } })
  await modelClient(services, first)
}
