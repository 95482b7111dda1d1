import { Button, Card, Group, Stack, Text, Textarea } from '@mantine/core'
import type { Chat } from '@muster/client'
import { createChatCompletion, deleteChat, getChat, listActors, updateChat } from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useProviders } from '#choices.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { useDraft } from '#components/draft.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { MessageCard } from '#components/message.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, Section, type Tab } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { sendOnEnter } from '#components/send-key.ts'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { CopyText, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import { useConfig } from '#session/gate.tsx'
import * as strings from '#strings.ts'
import { ChatForm, readChat } from './chat-form.tsx'

const texts = strings.chats

/** Actors of a chat that are shown. */
const SHOWN_ACTORS = 25

/** A chat: its settings, a trial, and what an application needs to use it. */
export function ChatView() {
  const { chatId } = useIds()
  const chat = useQuery<Read<Chat>>({
    queryKey: ['chat', chatId],
    queryFn: ({ signal }) => readChat(chatId, signal),
  })
  return (
    <Loaded query={chat} operation={getChat}>
      {read => <ChatPage read={read} />}
    </Loaded>
  )
}

function ChatPage({ read }: { read: Read<Chat> }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, name } = read.record
  const tabs: Tab[] = [
    { value: 'settings', title: texts.settings, content: () => <Settings chat={read.record} /> },
    { value: 'use', title: texts.use, content: () => <Use id={id} /> },
  ]
  if (isAllowed(createChatCompletion))
    tabs.splice(1, 0, { value: 'try', title: texts.try, content: () => <Trial id={id} /> })
  return (
    <Page
      title={name ?? texts.unnamed}
      actions={
        <>
          <RemoveButton
            operation={deleteChat}
            ids={{ chat_id: id }}
            question={texts.deleteText}
            stale={[['chats', projectId]]}
            list="chats"
          />
          {isAllowed(updateChat) && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              form={close => <ChatForm first={read} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

function Settings({ chat: { id, ai_provider_id, model, instructions, updated_at } }: { chat: Chat }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const providers = useProviders(projectId)
  const actors = useQuery({
    queryKey: ['actors', projectId, 'of-chat', id],
    queryFn: async ({ signal }) =>
      (await listActors(api, { project_id: projectId, chat_id: id, limit: SHOWN_ACTORS }, { signal }).page()).data,
    enabled: isAllowed(listActors) === true,
  })
  const model_name = model ?? (ai_provider_id ? texts.defaultModel : undefined)
  return (
    <Stack gap="lg">
      <Section title={texts.settings}>
        <Facts
          facts={[
            [texts.provider, ai_provider_id ? providers.nameOf(ai_provider_id) : texts.defaultRoute],
            [texts.model, model_name && visible(model_name)],
            [strings.updated, <When key="updated" at={updated_at} />],
          ]}
        />
        <Stack gap={4}>
          <Text size="sm" c="dimmed">
            {texts.instructions}
          </Text>
          {instructions ? (
            <Value value={instructions} label={texts.instructions} />
          ) : (
            <Text>{texts.noInstructions}</Text>
          )}
        </Stack>
        <IdLine id={id} />
      </Section>
      {actors.data && actors.data.length > 0 && (
        <Section title={texts.actors}>
          <Group gap="md">
            {actors.data.map(actor => (
              <EntityLink key={actor.id} kind="actor" id={actor.id} projectId={projectId} name={actor.name} />
            ))}
          </Group>
        </Section>
      )}
    </Stack>
  )
}

type Said = { role: 'user' | 'assistant'; content: string; at: string }

/** Messages to the model and its answers, which are kept in the page only. */
function Trial({ id }: { id: string }) {
  const [said, setSaid] = useState<Said[]>([])
  const { value: text, setValue: setText } = useDraft('message', '')
  const complete = useAction({
    run: async (messages: Said[]) =>
      createChatCompletion(api, { chat_id: id, messages: messages.map(({ role, content }) => ({ role, content })) }),
    onDone: ({ choices }) => {
      const content = choices[0]?.message.content ?? ''
      setSaid(all => [...all, { role: 'assistant', content, at: new Date().toISOString() }])
    },
  })
  const last = said.at(-1)
  const isUnanswered = last?.role === 'user'
  const send = () => {
    if (complete.isPending) return
    // After a failure, the message that was not answered is sent again.
    const messages: Said[] = isUnanswered
      ? said
      : [...said, { role: 'user', content: text.trim(), at: new Date().toISOString() }]
    if (!isUnanswered) {
      if (!text.trim()) return
      setSaid(messages)
      setText('')
    }
    complete.mutate(messages)
  }
  return (
    <Section
      title={texts.try}
      actions={
        said.length > 0 && (
          <Button
            variant="default"
            size="xs"
            onClick={() => {
              setSaid([])
              complete.reset()
            }}
          >
            {texts.clear}
          </Button>
        )
      }
    >
      <Text c="dimmed">{texts.tryText}</Text>
      <Stack gap="md" role="log" aria-label={texts.transcript}>
        {said.map(({ role, content, at }, index) => (
          <MessageCard
            key={index}
            message={{
              document_id: String(index),
              role,
              origin: role === 'user' ? 'end_user' : 'agent',
              content,
              parts: null,
              author_name: role === 'user' ? null : texts.one,
              created_at: at,
            }}
          />
        ))}
      </Stack>
      {complete.error && <FailureAlert error={complete.error} onRetry={send} />}
      <Card withBorder padding="md" radius="lg" component="form" onSubmit={event => event.preventDefault()}>
        <Stack gap="sm">
          <Textarea
            label={texts.message}
            autosize
            minRows={2}
            maxRows={8}
            value={text}
            onChange={event => setText(event.currentTarget.value)}
            onKeyDown={sendOnEnter(send)}
          />
          <Group justify="flex-end">
            <Button onClick={send} loading={complete.isPending} disabled={!text.trim() || isUnanswered}>
              {texts.send}
            </Button>
          </Group>
        </Stack>
      </Card>
    </Section>
  )
}

/** What an application needs to use a chat. */
function Use({ id }: { id: string }) {
  const { base_url } = useConfig()
  const address = `${base_url}/openai/v1`
  const examples = {
    curl: `curl '${address}/chat/completions' \\
  -H "Authorization: Bearer $MUSTER_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '{"model":"${id}","messages":[{"role":"user","content":"Hello"}]}'`,
    TypeScript: `import OpenAI from 'openai'

const client = new OpenAI({ baseURL: '${address}', apiKey: process.env.MUSTER_KEY })
const completion = await client.chat.completions.create({
  model: '${id}',
  messages: [{ role: 'user', content: 'Hello' }],
})
console.log(completion.choices[0].message.content)`,
    Python: `import os
from openai import OpenAI

client = OpenAI(base_url="${address}", api_key=os.environ["MUSTER_KEY"])
completion = client.chat.completions.create(
    model="${id}",
    messages=[{"role": "user", "content": "Hello"}],
)
print(completion.choices[0].message.content)`,
  }
  return (
    <Section title={texts.use}>
      <Text c="dimmed">{texts.useText}</Text>
      {(
        [
          [texts.address, address],
          [texts.modelId, id],
        ] as const
      ).map(([label, value]) => (
        <Text key={label} component="div">
          {label}: <span className="mono">{value}</span> <CopyText text={value} />
        </Text>
      ))}
      {Object.entries(examples).map(([language, code]) => (
        <Stack gap={4} key={language}>
          <Value value={code} label={texts.example(language)} />
          <CopyText text={code} label={texts.copyAs(language)} />
        </Stack>
      ))}
    </Section>
  )
}
