import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { type CostCase, measure } from './measure.ts'

loadModules(modules)

const directory = path.join(import.meta.dirname, 'cases')
const areas = await Promise.all(
  fs.readdirSync(directory).map(async file => {
    const { default: cases } = (await import(path.join(directory, file))) as { default: CostCase[] }
    return { area: path.basename(file, '.ts'), cases }
  }),
)

/** Functions on the event loop whose input is written by callers, models or vendors: cost in the size of the input. */
describe('cost', () => {
  it('has each function once', () => {
    const names = areas.flatMap(({ cases }) => cases.map(({ name }) => name))
    assert.deepEqual([...new Set(names)].length, names.length, names.filter((n, at) => names.indexOf(n) < at).join())
  })

  for (const { area, cases } of areas)
    describe(area, () => {
      for (const one of cases)
        it(`${one.name} is linear and short up to ${one.limit} ${one.bound}`, async () => {
          for (const input of Object.keys(one.inputs)) assert.deepEqual(await measure(one, input), [], `input ${input}`)
        })
    })
})
