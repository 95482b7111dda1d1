import type { Services } from '#core/base/services.ts'
import { resolveTextSearchConfig, wordsSetting } from '../words/languages.ts'
import { currentSpace } from './space.ts'
import { findActiveSettings, type RetrievalSettings, setActiveSettings } from './store.ts'

/** Makes the settings of this process the active ones. Every worker calls it when it starts. */
export async function adoptSettings(services: Services): Promise<void> {
  const { pool, config } = services
  const space = await currentSpace(services)
  const text_search_config = wordsSetting(await resolveTextSearchConfig(pool, config.KNOWLEDGE_TEXT_SEARCH_CONFIG))
  await setActiveSettings(pool, { space_id: space?.id ?? null, text_search_config })
}

/**
 * Whether a setting of this process is active, or none is active yet. While workers with two configurations run
 * concurrently, workers with inactive settings must not reindex: they would revert each other's work.
 */
export async function ownsSettings<Name extends keyof RetrievalSettings>(
  services: Services,
  name: Name,
  value: RetrievalSettings[Name],
): Promise<boolean> {
  const active = await findActiveSettings(services.pool)
  return active === null || active[name] === null || active[name] === value
}
