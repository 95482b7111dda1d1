import { newId } from '../../core/api/ids.ts'
import type { Tx } from '../../core/db/write.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { withoutCredentials } from './config.ts'
import { aiProviderKind } from './model.ts'
import { insertProvider, providersOf } from './store.ts'

/** Copies providers of a project that were not copied before; `only` names them by id. The copies have no credentials. */
export async function copyProviders(
  tx: Tx,
  from: string,
  to: string,
  ids: Map<string, string>,
  only?: ReadonlySet<string>,
): Promise<void> {
  for (const row of await providersOf(tx, from)) {
    if (ids.has(row.id) || (only && !only.has(row.id))) continue
    const copy = await insertProvider(tx, newId(aiProviderKind.prefix), to, {
      ...row,
      secret_id: null,
      config: withoutCredentials(row.config),
      sealed_credentials: null,
      secret_ids: [],
    })
    ids.set(row.id, copy.id)
    tx.emit(aiProviderKind, 'created', copy)
  }
}

export const providerCloning: Cloneable = { name: 'ai_providers', copy: copyProviders }
