import type { Services } from '../src/core/operation.ts'
import type { Concern } from './concern.ts'

export const generationActors = (_services: Services): Concern => ({ actors: [], ticks: [] })
