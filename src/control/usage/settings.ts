import { flag, integer, number, setting, settings, type Values, zeroOrAtLeast } from '#core/base/setting.ts'

export const usageSettings = settings('control', {
  USAGE_REQUEST_FLUSH_INTERVAL_MS: setting(
    integer(10, 86_400_000),
    '60000',
    'Interval at which counted requests of keys are written as usage; a killed process loses the unwritten counts.',
  ),
  USAGE_REQUEST_METERING_DISABLED: setting(flag, 'false', 'Whether requests of keys are not metered.'),
  USAGE_ROLLUP_DAYS: setting(
    zeroOrAtLeast(40),
    '0',
    'Age at which usage events are replaced by sums per hour, at least 40; events of a turn remain as long as its record. 0 disables it.',
  ),
})

export const embeddingPriceSettings = settings('content', {
  EMBEDDING_INPUT_1M_TOKEN_PRICE_USD: setting(
    number(0, 1e6),
    '0',
    'Price of one million embedded tokens, in US dollars.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof usageSettings>, Values<typeof embeddingPriceSettings> {}
}
