import { z } from 'zod'
import { type Queryable, sql } from '#core/db/sql.ts'
import { defaultRouteOf, type LoadedRoute, loadedRoute, routeById } from '#execution/model-routes/store.ts'
import { aiProviderKind, type ProviderRow } from '#execution/providers/model.ts'
import type { DefaultRouteUsers } from '#identity/projects/default-model-route.ts'
import { PauseState, pauseStateOf } from '#identity/projects/store.ts'
import { type ChatRow, chatKind } from './model.ts'

/** Lists the chats that use the default route of their project. By chats_inheriting. */
export const listDefaultRouteChats: DefaultRouteUsers = {
  kind: 'chat',
  ids: project => sql.fragment`select id from chats where project_id = ${project} and ai_provider_id is null`,
}

/** A provider, or a route if there is no provider, with the state of its project. */
export type ServedTarget = { provider: ProviderRow | null; route: LoadedRoute | null; project: PauseState }

const servedChatRow = sql.type(
  chatKind.row.extend({ provider: z.custom<ProviderRow>().nullable(), route: loadedRoute, project: PauseState }),
)

/** Returns a chat with its target in one statement, or null. */
export async function findServedChat(
  db: Queryable,
  id: string,
): Promise<{ chat: ChatRow; served: ServedTarget } | null> {
  const row = await db.maybeOne(servedChatRow`
    select c.*, to_jsonb(pr) as provider, ${pauseStateOf(sql.fragment`c.project_id`)} as project,
      case when c.ai_provider_id is null then ${defaultRouteOf(sql.fragment`c.project_id`)} end as route
    from (select ${chatKind.columns} from chats t where t.id = ${id}) c
    left join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = c.ai_provider_id) pr on true`)
  if (!row) return null
  const { provider, route, project, ...chat } = row
  return { chat, served: { provider, route, project } }
}

const servedProviderRow = sql.type(aiProviderKind.row.extend({ project: PauseState }))

/** Returns a provider as a target in one statement, or null. */
export async function findServedProvider(
  db: Queryable,
  id: string,
): Promise<(ServedTarget & { provider: ProviderRow }) | null> {
  const row = await db.maybeOne(servedProviderRow`
    select ${aiProviderKind.columns}, ${pauseStateOf(sql.fragment`t.project_id`)} as project
    from ai_providers t where t.id = ${id}`)
  if (!row) return null
  const { project, ...provider } = row
  return { provider, route: null, project }
}

const servedRouteRow = sql.type(z.object({ route: z.custom<LoadedRoute>(), project: PauseState }))

/** Returns a model route as a target in one statement, or null. */
export async function findServedRoute(
  db: Queryable,
  id: string,
): Promise<(ServedTarget & { route: LoadedRoute }) | null> {
  const row = await db.maybeOne(servedRouteRow`
    select ${routeById(sql.fragment`m.id`)} as route, ${pauseStateOf(sql.fragment`m.project_id`)} as project
    from model_routes m where m.id = ${id}`)
  return row && { provider: null, ...row }
}
