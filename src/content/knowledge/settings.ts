import { integer, number, setting, settings, type Values } from '#core/base/setting.ts'

export const knowledgeSettings = settings('content', {
  KNOWLEDGE_RRF_K: setting(number(0.001, 1000), '60', 'Constant k of reciprocal rank fusion.'),
  KNOWLEDGE_RECENCY_HALF_LIFE_DAYS: setting(
    number(0, 36_500),
    '0',
    'Half-life of memories in the ranking; 0 disables decay.',
  ),
  KNOWLEDGE_EMBED_TIMEOUT_MS: setting(integer(10), '5000', 'Timeout of the embedding of a query.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof knowledgeSettings> {}
}
