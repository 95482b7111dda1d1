import { recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, type TestApp } from '../support/app.ts'

/** Usage events of a project in the order in which they were made, with what the wire does not show. */
export const usageOf = async (app: Pick<TestApp, 'pool'>, projectId: string): Promise<any[]> => [
  ...((await app.pool.any(
    rawQuery('select * from usage_events where project_id = $1 order by id', [projectId]),
  )) as any[]),
]

/** The same, once there are as many as given. */
export const usageOnce = (app: Pick<TestApp, 'pool'>, projectId: string, count: number): Promise<any[]> =>
  eventually(async () => {
    const found = await usageOf(app, projectId)
    return found.length >= count ? found : null
  })

/** Usage of a project once everything that was recorded before is written. */
export async function usageSettled(app: Pick<TestApp, 'inCellOf' | 'pool'>, projectId: string): Promise<any[]> {
  const last = useOf(projectId, { idempotency_key: `last:${crypto.randomUUID()}` })
  app.inCellOf(projectId, services => recordUsageLater(services, [last]))
  const found = await eventually(async () => {
    const events = await usageOf(app, projectId)
    return events.some(({ idempotency_key }) => idempotency_key === last.idempotency_key) ? events : null
  })
  return found.filter(({ idempotency_key }) => !idempotency_key.startsWith('last:'))
}

/** A use of 1,000 tokens in and 500 out. */
export const useOf = (projectId: string, fields: Partial<UsageDraft> = {}): UsageDraft => ({
  idempotency_key: `test:${crypto.randomUUID()}`,
  project_id: projectId,
  meter_type: 'llm_tokens',
  provider: 'openai',
  model: 'gpt-test',
  source: null,
  components: [
    { component: 'input_tokens', quantity: 1000, unit: 'token', billable: true },
    { component: 'output_tokens', quantity: 500, unit: 'token', billable: true },
  ],
  ...fields,
})
