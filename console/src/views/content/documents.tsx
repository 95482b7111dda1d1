import createFields from 'fields:createDocument'
import { Badge, type BadgeProps, Button, Group, Text } from '@mantine/core'
import type { Document, DocumentInput } from '@muster/client'
import { createDocument, listDocuments, uploadFile } from '@muster/client/operations'
import { IconFileText, IconPlus } from '@tabler/icons-react'
import { Link, useNavigate } from '@tanstack/react-router'
import { api, BUSY_MS } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { tagFilter } from '#components/tags.tsx'
import { sizeText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.documents

const STATUSES = ['pending', 'processing', 'ready', 'failed', 'withdrawn'] as const

/** Whether the state of a document is about to change. */
export const isIngesting = (status: Document['status'] | undefined): boolean =>
  status === 'pending' || status === 'processing'

const COLORS: Partial<Record<Document['status'], BadgeProps>> = {
  failed: { color: 'red.9', variant: 'filled' },
  ready: { color: 'teal.9', variant: 'filled' },
}

/** State of a document. */
export function DocumentStatus({ status }: { status: Document['status'] }) {
  return (
    <Badge variant="default" {...COLORS[status]}>
      {texts.status[status]}
    </Badge>
  )
}

const documentColumns = (projectId: string): Column<Document>[] => [
  {
    title: texts.title,
    isWide: true,
    cell: ({ id, title, filename, path }) => (
      <>
        <RecordLink to={`/p/${projectId}/documents/${id}`}>{visible(title ?? filename)}</RecordLink>
        {path && (
          <Text size="sm" c="dimmed">
            {visible(path)}
          </Text>
        )}
      </>
    ),
  },
  { title: strings.state, cell: ({ status }) => <DocumentStatus status={status} /> },
  { title: texts.chunks, cell: ({ chunk_count }) => chunk_count.toLocaleString() },
  { title: strings.files.size, cell: ({ size }) => sizeText(size) },
  { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
]

const useDocuments = (projectId: string) =>
  useList<Document>(
    ['documents', projectId],
    async ({ folder, status, tag }, bounds, signal) => {
      const chosen = STATUSES.filter(each => each === status)
      const args = {
        project_id: projectId,
        status: chosen,
        ...tagFilter(tag),
        ...(folder ? { path_prefix: folder } : {}),
        ...bounds,
      }
      return listDocuments(api, args, { signal }).page()
    },
    { pollMs: rows => (rows.some(({ status }) => isIngesting(status)) ? BUSY_MS : undefined) },
  )

/** Documents of a project. */
export function Documents() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useDocuments(projectId)
  const columns = documentColumns(projectId)
  const create = isAllowed(createDocument) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <DocumentForm onCancel={close} />}
    />
  )
  return (
    <Page title={strings.nav.documents} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.documents}
        list={list}
        operation={listDocuments}
        columns={columns}
        fields={
          <>
            <SearchField name="folder" label={texts.folder} />
            <SearchField name="tag" label={strings.tags.filter} />
            <ChoiceField
              name="status"
              label={strings.state}
              choices={STATUSES.map(value => ({ value, label: texts.status[value] }))}
            />
          </>
        }
        view="documents"
        empty={
          <Notice
            icon={<IconFileText />}
            title={texts.empty}
            color="indigo"
            action={
              <Group gap="sm">
                {create}
                {isAllowed(uploadFile) && (
                  <Button component={Link} to={`/p/${projectId}/files`} variant="default">
                    {texts.fromFile}
                  </Button>
                )}
              </Group>
            }
          >
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function DocumentForm({ onCancel }: { onCancel: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const create = useAction({
    run: async (values: Partial<DocumentInput>) =>
      createDocument(api, { content: '', ...values, project_id: projectId }),
    stale: [['documents', projectId], ['files', projectId], ['start']],
    onDone: ({ id }) => void navigate({ to: `/p/${projectId}/documents/${id}` }),
  })
  return (
    <SchemaForm
      schema={createFields}
      only={['title', 'content', 'path', 'chunk_strategy', 'chunk_unit', 'chunk_size', 'chunk_overlap', 'metadata']}
      submitLabel={strings.create}
      isPending={create.isPending}
      error={create.error}
      onSubmit={create.mutate}
      onCancel={onCancel}
    />
  )
}
