import type { Services } from '../../core/process/services.ts'
import { resolveTextSearchConfig } from '../chunks/store.ts'
import { currentSpace } from './space.ts'
import { activeSettings, type RetrievalSettings, setActiveSettings } from './store.ts'

/** Has documents follow the settings of this process from now on. Called by every worker that starts. */
export async function adoptSettings(services: Services): Promise<void> {
  const { pool, config } = services
  const space = await currentSpace(services)
  const text_search_config = await resolveTextSearchConfig(pool, config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  await setActiveSettings(pool, { space_id: space?.id ?? null, text_search_config })
}

/**
 * Whether a setting of this process is the one that documents follow, as it is when none was chosen yet. While workers
 * of two configurations run side by side, those that started first leave documents alone: each would turn back what the
 * other did.
 */
export async function ownsSettings<Name extends keyof RetrievalSettings>(
  services: Services,
  name: Name,
  own: RetrievalSettings[Name],
): Promise<boolean> {
  const chosen = await activeSettings(services.pool)
  return chosen === null || chosen[name] === null || chosen[name] === own
}
