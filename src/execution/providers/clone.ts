import type { Tx } from '#core/writes/writer.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { withoutCredentials } from './config.ts'
import { aiProviderKind } from './model.ts'
import { listProjectProviders } from './store.ts'

/** Copies the providers of a project, or only those in `only`, unless they were copied. Credentials are not copied. */
export async function copyProviders(
  tx: Tx,
  from: string,
  to: string,
  ids: Map<string, string>,
  only?: ReadonlySet<string | null>,
): Promise<void> {
  for (const row of await listProjectProviders(tx, from)) {
    if (ids.has(row.id) || (only && !only.has(row.id))) continue
    const { name, provider, default_model, base_url } = row
    const config = withoutCredentials(row.config)
    const copy = await aiProviderKind.insert(tx, { project_id: to, name, provider, default_model, base_url, config })
    ids.set(row.id, copy.id)
    tx.emit(aiProviderKind, 'created', copy)
  }
}

export const providerCloning: Cloneable = {
  name: 'ai_providers',
  copy: (tx, from, to, ids) => copyProviders(tx, from, to, ids),
}
