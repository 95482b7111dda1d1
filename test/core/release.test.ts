import assert from 'node:assert/strict'
import { compareReleases } from '#core/base/release.ts'

describe('versions of releases', () => {
  it('are in the order of Semantic Versioning, prereleases before their release', () => {
    const ordered = [
      '0.2.0-alpha',
      '0.2.0-alpha.1',
      '0.2.0-alpha.beta',
      '0.2.0-beta',
      '0.2.0-beta.2',
      '0.2.0-beta.11',
      '0.2.0-rc.1',
      '0.2.0',
      '0.2.1-rc.1',
      '0.2.1',
      '0.10.0',
      '1.0.0',
    ]
    for (const [index, one] of ordered.entries())
      for (const [at, other] of ordered.entries())
        assert.equal(Math.sign(compareReleases(one, other)), Math.sign(index - at), `${one} ${other}`)
    assert.equal(compareReleases('0.2.0+1', '0.2.0+2-rc'), 0)
  })
})
