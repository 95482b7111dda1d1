import { resource } from '#core/resources/resource.ts'
import { actorKind } from './model.ts'

export const actors = resource(actorKind, { path: '/actors', tag: 'Actors' })
