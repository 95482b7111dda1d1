import type { Services } from '../../core/process/services.ts'
import { resolveTextSearchConfig } from '../chunks/store.ts'

/** Whether the database has the text search configuration of KNOWLEDGE_TEXT_SEARCH_CONFIG. */
export async function hasTextSearch({ config, pool }: Pick<Services, 'config' | 'pool'>): Promise<boolean> {
  const name = config.KNOWLEDGE_TEXT_SEARCH_CONFIG
  return (await resolveTextSearchConfig(pool, name)) === name
}

/** Says in the log of a process that starts that its searches will do without words. */
export async function warnMissingTextSearch(services: Pick<Services, 'config' | 'log' | 'pool'>): Promise<void> {
  if (await hasTextSearch(services)) return
  services.log.error(
    { text_search_config: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG },
    'the database has no such text search configuration: searches go by meaning alone, new chunks are indexed as simple',
  )
}
