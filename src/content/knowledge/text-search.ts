import type { Services } from '#core/base/services.ts'
import { resolveTextSearchConfig } from '../index/words/languages.ts'

/** Whether the database has the configuration KNOWLEDGE_TEXT_SEARCH_CONFIG. */
export async function hasTextSearch({ config, pool }: Pick<Services, 'config' | 'pool'>): Promise<boolean> {
  const name = config.KNOWLEDGE_TEXT_SEARCH_CONFIG
  return (await resolveTextSearchConfig(pool, name)) === name
}

/** Logs at startup that searches by words are unavailable. */
export async function warnMissingTextSearch(services: Pick<Services, 'config' | 'log' | 'pool'>): Promise<void> {
  if (await hasTextSearch(services)) return
  services.log.error(
    { text_search_config: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG },
    'text search configuration not found, searching by meaning only and indexing new chunks as simple',
  )
}
