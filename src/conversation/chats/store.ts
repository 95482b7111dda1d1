import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { defaultRouteOf, type LoadedRoute, loadedRoute } from '../../execution/model-routes/store.ts'
import { aiProviderKind, type ProviderRow } from '../../execution/providers/model.ts'
import type { DefaultRouteUsers } from '../../identity/projects/default-model-route.ts'
import { type ChatRow, chatKind } from './model.ts'

/** Chats that use the default route of their project. By chats_inheriting. */
export const listDefaultRouteChats: DefaultRouteUsers = {
  kind: 'chat',
  ids: project => sql.fragment`select id from chats where project_id = ${project} and ai_provider_id is null`,
}

/** A provider, or a route if there is no provider. */
export type ServedTarget = { provider: ProviderRow | null; route: LoadedRoute | null }

const servedChatRow = sql.type(
  chatKind.row.extend({ provider: z.custom<ProviderRow>().nullable(), route: loadedRoute }),
)

/** Returns a chat with its provider or route in one statement, or null. */
export async function findServedChat(
  db: Queryable,
  id: string,
): Promise<{ chat: ChatRow; served: ServedTarget } | null> {
  const row = await db.maybeOne(servedChatRow`
    select c.*, to_jsonb(pr) as provider,
      case when c.ai_provider_id is null then ${defaultRouteOf(sql.fragment`c.project_id`)} end as route
    from (select ${chatKind.columns} from chats t where t.id = ${id}) c
    left join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = c.ai_provider_id) pr on true`)
  if (!row) return null
  const { provider, route, ...chat } = row
  return { chat, served: { provider, route } }
}
