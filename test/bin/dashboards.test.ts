import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { parse } from 'yaml'
import { registry } from '#core/base/metrics.ts'
import { startApp } from '../support/app.ts'
import { scrape } from '../support/metrics.ts'
import { forSuite } from '../support/suite.ts'

const root = path.resolve(import.meta.dirname, '../..')
const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')

type Panel = { id: number; type: string; title: string; targets?: { expr: string }[] }

const dashboard: { panels: Panel[]; templating: { list: { definition?: string }[] } } = JSON.parse(
  read('deploy/grafana/muster.json'),
)
const { groups } = parse(read('deploy/prometheus/muster-alerts.yml')) as {
  groups: { rules: { alert: string; expr: string; labels: object; annotations: { summary: string } }[] }[]
}
const rules = groups.flatMap(each => each.rules)

/** Labels that Prometheus adds, and the label of the buckets of a histogram. */
const OTHER_LABELS = ['instance', 'le']

const expressions = [
  ...rules.map(({ expr }) => expr),
  ...dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr)),
  ...dashboard.templating.list.flatMap(({ definition }) => definition ?? []),
]

const metricsIn = (expression: string): string[] => expression.match(/\b(?:muster|nodejs|process)_\w+/g) ?? []

const baseOf = (name: string): string => name.replace(/_(bucket|count|sum)$/, '')

describe('the dashboard and the alert rules', () => {
  const app = forSuite(startApp)

  it('use metrics that the service exports', async () => {
    const { text } = await scrape(app.url)
    const exported = new Set([...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name]) => name))
    for (const expression of expressions) {
      const names = metricsIn(expression)
      assert.ok(names.length > 0, expression)
      for (const name of names) assert.ok(exported.has(name) || exported.has(baseOf(name)), name)
    }
  })

  it('use labels that the metrics have', () => {
    for (const expression of expressions) {
      const known = metricsIn(expression).flatMap(name => {
        const metric = registry.getSingleMetric(name) ?? registry.getSingleMetric(baseOf(name))
        return (metric as unknown as { labelNames: string[] } | undefined)?.labelNames ?? []
      })
      const lists = [...expression.matchAll(/\b(?:by|ignoring) \(([^)]*)\)|\bignoring\((\w+)\)/g)]
      const selected = [...expression.matchAll(/[{,]\s*(\w+)=~?"/g)].map(([, label]) => label)
      for (const label of [...lists.flatMap(([, a, b]) => (a ?? b).split(/,\s*/)), ...selected])
        assert.ok([...known, ...OTHER_LABELS].includes(label), `${label} in ${expression}`)
    }
  })

  it('are complete: each alert has a severity and a summary, each panel a title and an expression', () => {
    assert.ok(rules.length >= 10)
    assert.equal(new Set(rules.map(({ alert }) => alert)).size, rules.length)
    for (const { alert, labels, annotations } of rules) {
      assert.match(alert, /^Muster\w+$/)
      assert.ok('severity' in labels && annotations.summary, alert)
    }
    const { panels } = dashboard
    assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length)
    for (const { type, title, targets } of panels) assert.ok(title && (type === 'row' || targets?.length), title)
  })
})
