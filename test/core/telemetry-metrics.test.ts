import assert from 'node:assert/strict'
import { costTotal } from '#control/usage/metrics.ts'
import { registry } from '#core/base/metrics.ts'
import { PROJECT_LABEL, projectLabels } from '#core/base/project-labels.ts'
import { eventually } from '../support/app.ts'
import type { ReceivedMetric } from '../support/collector.ts'
import { scrape } from '../support/metrics.ts'
import { forSuite } from '../support/suite.ts'
import { startTracedApp, type TracedApp } from './telemetry-support.ts'

const MS = '500'

describe('metrics over OTLP', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp())

  /** A metric of a process, once it has a value with some attributes. */
  const exported = (name: string, service: string, attributes: object = {}): Promise<ReceivedMetric> =>
    eventually(
      () => {
        for (const all of app.collector.metrics.values())
          for (const metric of all)
            if (
              metric.name === name &&
              metric.resource['service.name'] === service &&
              metric.points.some(point => includes(point.attributes, attributes))
            )
              return metric
      },
      { what: `${name} of ${service}` },
    )
  const includes = (all: Record<string, unknown>, some: object) =>
    Object.entries(some).every(([name, value]) => all[name] === value)
  const valueAt = ({ points }: ReceivedMetric, attributes: object) =>
    points.find(point => includes(point.attributes, attributes))?.value

  it('have the values of /metrics, with the names, units and attributes of OpenTelemetry', async () => {
    const web = await app.start('web', { OTEL_METRIC_EXPORT_INTERVAL: MS })
    const worker = await app.start('worker', { OTEL_METRIC_EXPORT_INTERVAL: MS })
    const agent = await app.agent()
    const turn = await app.at(web).post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
    assert.equal(turn.body.status, 'completed', JSON.stringify(turn.body))
    const call = { 'gen_ai.operation.name': 'chat', 'gen_ai.provider.name': 'custom' }
    const duration = await exported('gen_ai.client.inference.duration', 'muster-worker', call)
    assert.deepEqual([duration.kind, duration.unit], ['histogram', 's'])
    const tokens = await exported('gen_ai.client.inference.usage.input_tokens', 'muster-worker', call)
    assert.deepEqual([tokens.kind, tokens.unit], ['sum', '{token}'])
    const labels = { gen_ai_operation_name: 'chat', gen_ai_provider_name: 'custom' }
    const shown = await scrape(worker.url)
    assert.equal(valueAt(duration, call), shown.value('gen_ai_client_inference_duration_seconds_count', labels))
    assert.equal(valueAt(tokens, call), shown.value('gen_ai_client_inference_usage_input_tokens_total', labels))
    const age = await exported('muster.queue.age', 'muster-web')
    assert.deepEqual([age.kind, age.unit], ['gauge', 's'])
    const requests = await exported('muster.requests', 'muster-web', { status: '200' })
    assert.equal(requests.kind, 'sum')
    await exported('process.resident.memory', 'muster-web')
    // Without the setting no metric has a project.
    assert.ok(
      !app.collector.bodies.some(body => body.includes('muster.project_id') && body.includes('resourceMetrics')),
    )
    assert.ok(!shown.text.includes(app.projectId))
    assert.deepEqual(app.collector.problems, [])
  })

  it('count turns, tokens and cost by project where a setting says so', async () => {
    const worker = await app.start('worker', { OTEL_METRIC_EXPORT_INTERVAL: MS, OTEL_METRICS_BY_PROJECT: 'true' })
    const web = await app.start('web')
    const other = await app.project()
    // Until this worker has executed a turn of the project: others of the suite take some.
    const agent = await app.agent()
    await eventually(async () => {
      await app.at(web).post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
      return (await scrape(worker.url)).text.includes(app.projectId)
    })
    const project = { 'muster.project_id': app.projectId }
    for (const name of ['muster.turns', 'muster.tokens']) {
      const { points } = await exported(name, 'muster-worker', project)
      assert.ok(!points.some(({ attributes }) => attributes['muster.project_id'] === other.id))
    }
  })

  it('are exported once more at the end of a process', async () => {
    const web = await app.start('web', { OTEL_SERVICE_NAME: 'ending' })
    assert.equal((await app.at(web).get('/actors')).status, 200)
    web.child.kill('SIGTERM')
    await exported('muster.requests', 'ending', { status: '200' })
  })
})

describe('labels of projects', () => {
  it('belong to the busiest projects; the others are one', async () => {
    assert.deepEqual(projectLabels.of('early'), {})
    if (!registry.getSingleMetric('muster_cost_usd_total')) registry.registerMetric(costTotal)
    projectLabels.enable()
    try {
      const names = Array.from({ length: 250 }, (_, index) => `proj${index}`)
      for (const name of names) costTotal.inc({ provider: 'p', ...projectLabels.of(name) }, 1)
      assert.deepEqual(projectLabels.of('proj249'), { [PROJECT_LABEL]: 'other' })
      for (let turn = 0; turn < 3; turn++) for (const name of names.slice(50)) projectLabels.of(name)
      await projectLabels.rank()
      assert.deepEqual(projectLabels.of('proj249'), { [PROJECT_LABEL]: 'proj249' })
      assert.deepEqual(projectLabels.of('proj0'), { [PROJECT_LABEL]: 'other' })
      const { values } = await costTotal.get()
      const shown = values.map(({ labels }) => labels[PROJECT_LABEL])
      assert.deepEqual(
        [shown.includes('proj0'), shown.includes('proj60'), shown.includes('other')],
        [false, true, true],
      )
    } finally {
      projectLabels.disable()
      costTotal.reset()
    }
  })
})
