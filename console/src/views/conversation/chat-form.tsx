import fields from 'fields:createChat'
import type { Chat } from '@muster/client'
import { createChat, getChat, updateChat } from '@muster/client/operations'
import { api } from '#api.ts'
import { useProviders } from '#choices.ts'
import type { Read } from '#components/guarded-save.tsx'
import { RecordForm, readTagged } from '#components/record-form.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.chats

const properties = fields.properties ?? {}
const schema = {
  properties: {
    name: { ...properties.name, description: '' },
    ai_provider_id: { ...properties.ai_provider_id, title: texts.provider, description: texts.providerHelp },
    model: { ...properties.model, description: texts.modelHelp },
    instructions: { ...properties.instructions, description: texts.instructionsHelp },
  },
}

export const readChat = (id: string, signal?: AbortSignal): Promise<Read<Chat>> =>
  readTagged(getChat, { chat_id: id }, signal)

/** Creates or changes a chat. */
export function ChatForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Chat>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const { choices } = useProviders(projectId)
  return (
    <RecordForm<Chat>
      first={first}
      read={readChat}
      write={async (change, options, id) =>
        id
          ? updateChat(api, { ...change, chat_id: id }, options)
          : createChat(api, { ...change, project_id: projectId })
      }
      stale={[['chats', projectId], ['chat']]}
      schema={schema}
      only={Object.keys(schema.properties)}
      options={{ ai_provider_id: choices }}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}
