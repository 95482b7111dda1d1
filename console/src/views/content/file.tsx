import ingestFields from 'fields:ingestDocument'
import patchFields from 'fields:updateFileMetadata'
import { Anchor, Button, FileButton, Group, Modal, Stack, Text } from '@mantine/core'
import type { FilePatch, File as FileRecord, IngestInput } from '@muster/client'
import {
  deleteFile,
  downloadFile,
  getDocument,
  getFile,
  ingestDocument,
  listFileDependents,
  replaceFileContent,
  replaceFileTags,
  updateFileMetadata,
} from '@muster/client/operations'
import { IconDownload, IconFileText } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { FilePreview } from '#components/file-preview.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { saveAs } from '#components/save.ts'
import { SchemaForm } from '#components/schema-form.tsx'
import { FailureAlert } from '#components/states.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { sizeText, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.files

const fileKey = (id: string) => ['file', id]

/** Saves the content of a file. It is kept in parts: the browser moves large ones to the disk. */
async function saveFile(id: string, filename: string): Promise<void> {
  const parts: BlobPart[] = []
  for await (const part of await downloadFile(api, { file_id: id })) parts.push(part as BlobPart)
  saveAs(parts, filename)
}

/** A file: its record, its content, and the documents made of it. */
export function FileView() {
  const { fileId } = useIds()
  return (
    <RecordPage queryKey={fileKey(fileId)} get={getFile} ids={{ file_id: fileId }}>
      {record => <FilePage file={record} />}
    </RecordPage>
  )
}

function FilePage({ file }: { file: FileRecord }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const stale = [fileKey(file.id), ['files', projectId]]
  const { document_id } = file
  const mayDownload = file.has_content && isAllowed(downloadFile)
  const actions = (
    <>
      {mayDownload && (
        <ActionButton
          size="sm"
          label={texts.download}
          leftSection={<IconDownload size={16} />}
          run={() => saveFile(file.id, file.filename)}
        />
      )}
      {document_id && isAllowed(getDocument) && (
        <Button
          component={Link}
          to={`/p/${projectId}/documents/${document_id}`}
          leftSection={<IconFileText size={16} />}
        >
          {texts.openDocument}
        </Button>
      )}
      {!document_id && file.has_content && isAllowed(ingestDocument) && (
        <FormButton
          label={texts.ingest}
          leftSection={<IconFileText size={16} />}
          form={close => <IngestForm file={file} onCancel={close} />}
        />
      )}
    </>
  )
  return (
    <Page title={file.filename} intro={visible(file.path ?? '')} actions={actions}>
      <Section
        title={strings.record}
        actions={
          <>
            {isAllowed(replaceFileContent) && !document_id && <ReplaceButton file={file} />}
            {isAllowed(updateFileMetadata) && (
              <FormButton
                label={texts.change}
                variant="default"
                size="xs"
                form={close => <FileForm file={file} onDone={close} />}
              />
            )}
            {!document_id && (
              <RemoveButton
                operation={deleteFile}
                ids={{ file_id: file.id }}
                question={texts.deleteText}
                stale={[['files', projectId]]}
                list="files"
                size="xs"
              />
            )}
          </>
        }
      >
        <Facts
          facts={[
            [texts.type, file.content_type && <span className="mono">{visible(file.content_type)}</span>],
            [texts.size, file.size !== null && sizeText(file.size)],
            [strings.created, <When key="created" at={file.created_at} />],
            [strings.updated, <When key="updated" at={file.updated_at} />],
          ]}
        />
        <IdLine id={file.id} />
        {file.checksum_sha256 && (
          <Text size="sm" c="dimmed">
            SHA-256 <span className="mono">{file.checksum_sha256}</span>
          </Text>
        )}
        {file.metadata !== null && <Value value={file.metadata} label={texts.metadata} />}
        <Group gap="sm">
          <Tags tags={file.tags} />
          {isAllowed(updateFileMetadata) && (
            <TagsButton
              tags={file.tags}
              save={async tags => replaceFileTags(api, { ...tags, file_id: file.id })}
              stale={stale}
            />
          )}
        </Group>
      </Section>
      {mayDownload && (
        <Section title={texts.preview}>
          <FilePreview file={file} />
        </Section>
      )}
      <Dependents fileId={file.id} />
    </Page>
  )
}

/** Replaces the content of a file that no document is made of. */
function ReplaceButton({ file }: { file: FileRecord }) {
  const replace = useAction({
    run: async (content: File) => replaceFileContent(api, { file_id: file.id, file: content }),
    stale: [fileKey(file.id), ['files', file.project_id]],
    message: texts.replaced,
  })
  return (
    <>
      <FileButton onChange={chosen => chosen && replace.mutate(chosen)}>
        {props => (
          <Button {...props} size="xs" variant="default" loading={replace.isPending}>
            {texts.replace}
          </Button>
        )}
      </FileButton>
      <Modal opened={replace.isError} onClose={replace.reset} title={texts.replace}>
        <FailureAlert error={replace.error} />
      </Modal>
    </>
  )
}

function FileForm({ file, onDone }: { file: FileRecord; onDone: () => void }) {
  const save = useAction({
    run: async (values: FilePatch) => updateFileMetadata(api, { ...values, file_id: file.id }),
    stale: [fileKey(file.id), ['files', file.project_id]],
    onDone,
  })
  return (
    <SchemaForm
      schema={patchFields}
      // The place of a document's file is the place of the document.
      only={file.document_id ? ['metadata'] : ['filename', 'prefix', 'metadata']}
      initial={file}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}

function IngestForm({ file, onCancel }: { file: FileRecord; onCancel: () => void }) {
  const navigate = useNavigate()
  const ingest = useAction({
    run: async (values: Partial<IngestInput>) =>
      ingestDocument(api, { ...values, project_id: file.project_id, file_id: file.id }),
    stale: [fileKey(file.id), ['files', file.project_id], ['documents', file.project_id]],
    onDone: ({ id }) => void navigate({ to: `/p/${file.project_id}/documents/${id}` }),
  })
  return (
    <SchemaForm
      schema={ingestFields}
      only={['title', 'chunk_strategy', 'chunk_unit', 'chunk_size', 'chunk_overlap', 'metadata']}
      submitLabel={texts.ingest}
      isPending={ingest.isPending}
      error={ingest.error}
      onSubmit={ingest.mutate}
      onCancel={onCancel}
    />
  )
}

function Dependents({ fileId }: { fileId: string }) {
  const projectId = useProjectId()
  const dependents = useQuery({
    queryKey: ['file', fileId, 'dependents'],
    queryFn: async ({ signal }) =>
      (await listFileDependents(api, { file_id: fileId, limit: 100 }, { signal }).page()).data,
  })
  const rows = dependents.data ?? []
  if (rows.length === 0) return null
  return (
    <Section title={texts.dependents}>
      <Stack gap={4}>
        {rows.map(({ resource_type, resource_id }) => (
          <Text key={resource_id} component="div">
            {resource_type}{' '}
            {resource_type === 'document' ? (
              <Anchor component={Link} to={`/p/${projectId}/documents/${resource_id}`} className="mono">
                {resource_id}
              </Anchor>
            ) : (
              <span className="mono">{resource_id}</span>
            )}
          </Text>
        ))}
      </Stack>
    </Section>
  )
}
