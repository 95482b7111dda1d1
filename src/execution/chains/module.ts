import { turnHolds } from '../../control/retention/erasure.ts'
import { module } from '../../core/api/module.ts'
import { chainErrors } from './errors.ts'
import { chainKind } from './model.ts'
import { chainOperations } from './operations.ts'
import { isTurnOfLiveChain } from './store.ts'

export default module('chains', {
  tags: { Chains: 'Turns that carried on after one another, and their budget.' },
  errors: chainErrors,
  kinds: [chainKind],
  operations: chainOperations,
  extensions: [turnHolds.with(isTurnOfLiveChain)],
})
