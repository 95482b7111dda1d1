import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { defaultRouteInheritors } from '#identity/projects/default-model-route.ts'
import { chatErrors } from './errors.ts'
import { chatKind } from './model.ts'
import { chatOperations } from './operations.ts'
import { listDefaultRouteChats } from './store.ts'

export default module('chats', {
  tags: { Chats: 'Single completions of a model, in the format of the OpenAI API.' },
  errors: chatErrors,
  kinds: [chatKind],
  resourceTypes: [resourceType(chatKind)],
  operations: chatOperations,
  extensions: [defaultRouteInheritors.with(listDefaultRouteChats)],
})
