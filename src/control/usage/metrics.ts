import { Counter } from 'prom-client'
import { modelLabels } from '#core/base/label-values.ts'
import { PROJECT_LABEL, projectLabels } from '#core/base/project-labels.ts'
import type { PricedUsage } from './price-usage.ts'

export const tokensTotal = new Counter({
  name: 'muster_tokens_total',
  help: 'Metered model tokens by provider, model and kind (input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens; the last is included in output_tokens)',
  labelNames: ['provider', 'model', 'kind', PROJECT_LABEL],
  registers: [],
})

export const costTotal = new Counter({
  name: 'muster_cost_usd_total',
  help: 'Cost of priced usage in US dollars by meter type, provider and model',
  labelNames: ['meter_type', 'provider', 'model', PROJECT_LABEL],
  registers: [],
})

/** Adds written usage to the token and cost counters. */
export function countUsage(priced: readonly PricedUsage[]): void {
  for (const { row, quantities, cost_usd } of priced) {
    const [meter_type, provider, name] = [row.meter_type, row.provider, row.model].map(String)
    const model = modelLabels.of(provider, name, row.project_id)
    const project = projectLabels.of(row.project_id)
    for (const { component: kind, quantity, unit } of quantities)
      if (unit === 'token') tokensTotal.inc({ provider, model, kind, ...project }, quantity)
    if (cost_usd) costTotal.inc({ meter_type, provider, model, ...project }, cost_usd.toNumber())
  }
}
