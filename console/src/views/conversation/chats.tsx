import type { Chat } from '@muster/client'
import { createChat, listChats } from '@muster/client/operations'
import { IconMessageChatbot, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { useProviders } from '#choices.ts'
import { FormButton } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, NameCell, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ChatForm } from './chat-form.tsx'

const texts = strings.chats

/** Chats of a project. */
export function Chats() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const providers = useProviders(projectId)
  const list = useList<Chat>(['chats', projectId], async ({ q, provider }, bounds, signal) =>
    listChats(api, { project_id: projectId, name: q, ai_provider_id: provider, ...bounds }, { signal }).page(),
  )
  const columns: Column<Chat>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, instructions }) => (
        <NameCell to={`/p/${projectId}/chats/${id}`} name={name ?? texts.unnamed} description={instructions} />
      ),
    },
    {
      title: texts.provider,
      cell: ({ ai_provider_id }) => (ai_provider_id ? providers.nameOf(ai_provider_id) : texts.defaultRoute),
    },
    { title: texts.model, cell: ({ model }) => (model ? visible(model) : strings.none) },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createChat) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <ChatForm onDone={id => void navigate({ to: `/p/${projectId}/chats/${id}` })} onCancel={close} />}
    />
  )
  return (
    <Page title={strings.nav.chats} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.chats}
        list={list}
        operation={listChats}
        columns={columns}
        fields={
          <>
            <SearchField />
            {providers.choices && providers.choices.length > 0 && (
              <ChoiceField name="provider" label={texts.provider} choices={providers.choices} />
            )}
          </>
        }
        empty={
          <Notice icon={<IconMessageChatbot />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
