import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { firstProvider } from '../../execution/model-routes/store.ts'
import { aiProviderKind } from '../../execution/providers/model.ts'
import { modelClient } from '../../execution/providers/models.ts'
import { type ChatRow, chatKind } from './model.ts'
import type { CompletionBody } from './openai-format.ts'
import type { CompletionTarget } from './run-completion.ts'
import { findServedChat } from './store.ts'

type Named = Pick<CompletionBody, 'chat_id' | 'ai_provider_id' | 'model'>

/** The one target that a request names, by its fields or by its model. Raises VALIDATION_FAILED. */
function namedTarget({ chat_id, ai_provider_id, model }: Named): Named {
  if (chat_id !== undefined && ai_provider_id !== undefined)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'ai_provider_id', message: 'does not go with chat_id' })
  if (chat_id !== undefined || ai_provider_id !== undefined) return { chat_id, ai_provider_id, model }
  if (model !== undefined && isIdOf(chatKind, model)) return { chat_id: model }
  const cut = model?.indexOf('/') ?? -1
  const provider = model?.slice(0, cut)
  if (provider !== undefined && isIdOf(aiProviderKind, provider) && model?.[cut + 1] !== undefined)
    return { ai_provider_id: provider, model: model.slice(cut + 1) }
  return raiseInvalid({
    code: 'REQUIRED',
    path: 'chat_id',
    message: 'chat_id, ai_provider_id, or a model that is the id of a chat or `<ai_provider_id>/<model>` is required',
  })
}

/**
 * What a request goes to, in one statement; what the caller may not see is as if it did not exist.
 * @throws VALIDATION_FAILED, CHAT_NOT_FOUND, AI_PROVIDER_NOT_FOUND
 */
export async function findTarget(
  db: Queryable,
  caller: Caller,
  body: CompletionBody,
): Promise<{ target: CompletionTarget; chat: ChatRow | null }> {
  const { chat_id, ai_provider_id, model = null } = namedTarget(body)
  if (chat_id !== undefined) {
    const found = await servedTarget(db, chat_id, model)
    if (!canSeeProject(caller, found.chat.project_id)) return raise('CHAT_NOT_FOUND', { meta: { id: chat_id } })
    requireModel(found.target, model)
    return found
  }
  const id = ai_provider_id as string
  const provider = isIdOf(aiProviderKind, id) ? await aiProviderKind.find(db, id) : null
  if (!provider || !canSeeProject(caller, provider.project_id)) return raise('AI_PROVIDER_NOT_FOUND', { meta: { id } })
  return { chat: null, target: { provider, route: null, project_id: provider.project_id, model } }
}

/**
 * A chat with what its completions go to.
 * @param model in place of the chat's
 * @throws CHAT_NOT_FOUND
 */
export async function servedTarget(
  db: Queryable,
  id: string,
  model: string | null,
): Promise<{ target: CompletionTarget; chat: ChatRow }> {
  const found = isIdOf(chatKind, id) ? await findServedChat(db, id) : null
  if (!found) return raise('CHAT_NOT_FOUND', { meta: { id } })
  const { chat, served } = found
  return { chat, target: { ...served, project_id: chat.project_id, model: model ?? chat.model } }
}

/**
 * Refuses a model beside a route, whose targets name theirs: VALIDATION_FAILED. And a chat whose project has none:
 * AI_PROVIDER_NOT_FOUND.
 */
export function requireModel({ provider, route }: CompletionTarget, model: string | null): void {
  if (provider) return
  if (model !== null)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'model',
      message: 'the chat goes by a model route, whose targets name theirs',
    })
  // The default route may have been cleared before there was a chat to hold it.
  if (!route)
    raise('AI_PROVIDER_NOT_FOUND', {
      message: 'The chat has neither a provider nor a model route, and its project has no default route',
      meta: { id: null },
    })
}

/** Refuses a completion that could not be made: AI_PROVIDER_NOT_FOUND, AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND. */
export async function requireCallableChat(services: Services, target: CompletionTarget): Promise<void> {
  const first = firstProvider(target)
  if (!first)
    return raise('AI_PROVIDER_NOT_FOUND', { meta: { id: target.route?.route.targets[0].ai_provider_id ?? null } })
  await modelClient(services, first)
}
