import createFields from 'fields:createPreparedReply'
import { Text } from '@mantine/core'
import type { PreparedReply } from '@muster/client'
import {
  createPreparedReply,
  deletePreparedReply,
  listPreparedReplies,
  updatePreparedReply,
} from '@muster/client/operations'
import { IconMessageBolt, IconPlus } from '@tabler/icons-react'
import { api } from '#api.ts'
import { ActionButton, FormButton, RowActions, useAction } from '#components/actions.tsx'
import { type Column, ListView, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.preparedReplies

/** Prepared replies of a project. */
export function PreparedReplies() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const key = ['prepared-replies', projectId]
  const list = useList<PreparedReply>(key, async ({ q }, bounds, signal) =>
    listPreparedReplies(api, { project_id: projectId, name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<PreparedReply>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ name, text }) => (
        <>
          <Text fw={600} style={{ overflowWrap: 'anywhere' }}>
            {visible(name)}
          </Text>
          <Text size="sm" c="dimmed" lineClamp={3} className="wrap">
            {visible(text)}
          </Text>
        </>
      ),
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
    {
      title: strings.actions,
      cell: reply => (
        <RowActions>
          {isAllowed(updatePreparedReply) && (
            <FormButton
              label={strings.edit}
              title={texts.edit}
              size="xs"
              variant="default"
              form={close => <ReplyForm reply={reply} onDone={close} />}
            />
          )}
          {isAllowed(deletePreparedReply) && (
            <ActionButton
              label={strings.remove}
              color="red"
              question={texts.deleteText(visible(reply.name))}
              run={async () => deletePreparedReply(api, { prepared_reply_id: reply.id })}
              stale={[key]}
            />
          )}
        </RowActions>
      ),
    },
  ]
  const create = isAllowed(createPreparedReply) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <ReplyForm onDone={close} />}
    />
  )
  return (
    <Page title={texts.title} intro={texts.intro} actions={create}>
      <ListView
        label={texts.title}
        list={list}
        operation={listPreparedReplies}
        columns={columns}
        fields={<SearchField />}
        empty={
          <Notice icon={<IconMessageBolt />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function ReplyForm({ reply, onDone }: { reply?: PreparedReply; onDone: () => void }) {
  const projectId = useProjectId()
  const save = useAction({
    run: async (values: Values) =>
      reply
        ? updatePreparedReply(api, { prepared_reply_id: reply.id, ...values })
        : createPreparedReply(api, { project_id: projectId, ...values } as Parameters<typeof createPreparedReply>[1]),
    stale: [['prepared-replies', projectId]],
    onDone,
  })
  return (
    <SchemaForm
      schema={createFields}
      initial={reply as Values | undefined}
      only={['name', 'text']}
      submitLabel={reply ? strings.save : strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}
