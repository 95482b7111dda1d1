import { turnHolds } from '#control/retention/erasure.ts'
import { module } from '#core/modules/module.ts'
import { chainErrors } from './errors.ts'
import { chainKind } from './model.ts'
import { chainOperations } from './operations.ts'
import { isTurnOfLiveChain } from './store.ts'

export default module('chains', {
  tags: { Chains: 'Sequences of turns that continue one another, with their limit.' },
  errors: chainErrors,
  kinds: [chainKind],
  operations: chainOperations,
  extensions: [turnHolds.with(isTurnOfLiveChain)],
})
