import assert from 'node:assert/strict'
import { createdBy } from '../support/replies.ts'
import { consoleSuite } from './support.ts'

/** Where texts of the console are drawn. */
describe('the layout of the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite()
  const { open } = suite
  const create = (path: string, fields: object) =>
    createdBy(suite.app.admin, path, { project_id: suite.app.projectId, ...fields })

  it('draws the label of each edge on its own line', async () => {
    const step = (id: string) => ({ id, type: 'transform', expression: 1 })
    const { id } = await create('/orchestrations', {
      name: 'Labels',
      nodes: [{ id: 'ask', type: 'condition', expression: { var: 'input.kind' } }, ...['a', 'b', 'c', 'end'].map(step)],
      edges: [
        { from: 'ask', to: 'a', condition: 'refund' },
        { from: 'ask', to: 'b', condition: 'a long complaint' },
        { from: 'ask', to: 'end', condition: 'nothing to do' },
        { from: 'a', to: 'c' },
        { from: 'b', to: 'c' },
        { from: 'c', to: 'end' },
      ],
    })
    const { page } = await open(`orchestrations/${id}`)
    await page.locator('.react-flow__edge-text').nth(2).waitFor()
    const distances = (await page.evaluate(`
      [...document.querySelectorAll('.react-flow__edge')].flatMap(edge => {
        const text = edge.querySelector('.react-flow__edge-text')
        if (!text) return []
        const box = text.getBoundingClientRect()
        const path = edge.querySelector('path.react-flow__edge-path')
        const scale = path.getScreenCTM()
        const distances = Array.from({ length: 201 }, (_, n) => {
          const point = path.getPointAtLength((path.getTotalLength() * n) / 200).matrixTransform(scale)
          return Math.hypot(point.x - (box.x + box.width / 2), point.y - (box.y + box.height / 2))
        })
        return [[text.textContent, Math.min(...distances)]]
      })`)) as [string, number][]
    assert.equal(distances.length, 3)
    for (const [label, distance] of distances) assert.ok(distance < 8, `${label} is ${distance} px from its edge`)
  })

  it('keeps the words of tables whole', async () => {
    await create('/sessions', { agent_id: suite.app.agentId, name: 'x'.repeat(200) })
    for (let n = 0; n < 3; n++) {
      const { page } = await open(['sessions', 'traces', 'agents'][n])
      await page.getByRole('table').or(page.getByRole('main')).first().waitFor()
      await page.waitForLoadState('networkidle')
      const broken = (await page.evaluate(`
        [...document.querySelectorAll('.rows td[data-title], .rows th')].flatMap(cell => {
          const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
          const words = []
          while (walker.nextNode())
            for (const { 0: word, index } of walker.currentNode.data.matchAll(/[A-Za-z]{2,24}/g)) {
              if (walker.currentNode.parentElement.closest('.mono')) continue
              const range = document.createRange()
              range.setStart(walker.currentNode, index)
              range.setEnd(walker.currentNode, index + word.length)
              if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) words.push(word)
            }
          return words
        })`)) as string[]
      assert.deepEqual(broken, [])
      assert.equal(await page.evaluate('document.documentElement.scrollWidth'), 1280)
    }
  })
})
