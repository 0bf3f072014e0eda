"""Tests of `training.checkpoint_folder`."""

import os
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import fake_jobs
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import checkpoint_folder


class LocateTest(parameterized.TestCase):
  @parameterized.parameters(
    ('', '/runs/a/checkpoints'),
    ('/other/place', '/other/place'),
    ('/other/place/', '/other/place'),
    ('gs://bucket/run', 'gs://bucket/run'),
    ('gs://bucket/run/', 'gs://bucket/run'),
    ('~/run', os.path.expanduser('~/run')),
    ('run', os.path.join(os.getcwd(), 'run')),
  )
  def test_a_bucket_keeps_its_scheme_and_the_rest_is_absolute(
    self, folder, expected
  ):
    found = checkpoint_folder.locate('/runs/a', folder)
    self.assertEqual(os.fspath(found), expected)
    self.assertEqual(os.fspath(found / '7'), expected + '/7')
    self.assertEqual(
      checkpoint_folder.is_local(found), not folder.startswith('gs:')
    )

  def test_a_work_directory_in_a_bucket_has_its_checkpoints_there(self):
    found = checkpoint_folder.locate('gs://bucket/run', '')
    self.assertEqual(os.fspath(found), 'gs://bucket/run/checkpoints')


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    path = pathlib.Path(folder.name) / 'checkpoints'
    self.folder = checkpoint_folder.locate('', str(path))

  def make(self, *names):
    for name in names:
      (self.folder / name).mkdir(parents=True)

  def finish(self, *names):
    for name in names:
      (self.folder / name / 'commit_success.txt').write_text('')


class NamedTest(_Test):
  def test_it_is_what_the_settings_of_a_run_say(self):
    self.assertEqual(checkpoint_folder.named(self.folder), '')
    self.folder.mkdir()
    settings = self.folder / 'run_config.json'
    for text, expected in (
      ('{"checkpoint": {"folder": "gs://b/run"}}', 'gs://b/run'),
      ('{"checkpoint": {"keep": 2}}', ''),
    ):
      settings.write_text(text)
      self.assertEqual(checkpoint_folder.named(self.folder), expected)


class LookTest(_Test):
  def test_nothing_is_found_where_there_is_no_folder_or_an_empty_one(self):
    for _ in range(2):
      found = checkpoint_folder.look(self.folder)
      self.assertEqual(found, ((), (), ()))
      self.folder.mkdir(exist_ok=True)

  def test_a_checkpoint_is_whole_once_its_marker_is_there(self):
    self.make('3', '12', '7', '0', '13.orbax-checkpoint-tmp')
    self.finish('3', '12', '0', '13.orbax-checkpoint-tmp')
    found = checkpoint_folder.look(self.folder)
    self.assertEqual(found.whole, (0, 3, 12))
    self.assertEqual(found.unfinished, (7,))
    self.assertEqual(found.begun, ('13.orbax-checkpoint-tmp',))

  def test_what_has_another_name_is_left_alone(self):
    self.make('3', '3.bak', 'best', '-3', '3_old', '1e3', '٣')
    self.finish('3', '3.bak', 'best')
    (self.folder / 'run.lock').write_text('1')
    self.assertEqual(checkpoint_folder.look(self.folder), ((3,), (), ()))

  @parameterized.parameters('007', '00')
  def test_a_number_that_is_written_otherwise_is_refused(self, name):
    self.make(name)
    with self.assertRaisesRegex(
      ValueError, rf'/{name} is not named .*: rename it to {int(name)}, or'
    ):
      checkpoint_folder.look(self.folder)

  def test_a_file_in_the_place_of_a_checkpoint_is_refused(self):
    self.make('3')
    (self.folder / '5').write_text('')
    with self.assertRaisesRegex(ValueError, '/5 is a file, .* move it away'):
      checkpoint_folder.look(self.folder)

  def test_a_file_in_the_place_of_the_folder_is_refused(self):
    self.folder.write_text('')
    with self.assertRaisesRegex(
      ValueError, 'checkpoints is a file, .*--config.checkpoint.folder'
    ):
      checkpoint_folder.look(self.folder)


class WarnTest(_Test):
  def test_what_is_left_out_is_named_a_line_each(self):
    self.make('3', '7', '9.orbax-checkpoint-tmp')
    self.finish('3')
    with self.assertLogs('absl', 'WARNING') as logs:
      checkpoint_folder.warn(self.folder, checkpoint_folder.look(self.folder))
    self.assertLen(logs.records, 2)
    for name, record in zip(
      ('7', '9.orbax-checkpoint-tmp'), logs.records, strict=True
    ):
      self.assertRegex(
        record.getMessage(), rf'/{name} is not finished .*3 is the newest whole'
      )

  def test_nothing_is_said_of_what_is_whole(self):
    self.make('3')
    self.finish('3')
    with self.assertNoLogs('absl', 'WARNING'):
      checkpoint_folder.warn(self.folder, checkpoint_folder.look(self.folder))


class PrepareTest(_Test):
  def test_only_what_was_begun_is_removed(self):
    self.make('3', '7', '9.orbax-checkpoint-tmp', 'mine')
    self.finish('3')
    checkpoint_folder.prepare(self.folder, checkpoint_folder.look(self.folder))
    names = sorted(path.name for path in self.folder.iterdir())
    self.assertEqual(names, ['3', '7', 'mine'])

  def test_a_folder_that_cannot_be_written_to_is_refused_with_its_name(self):
    file = pathlib.Path(str(self.folder))
    file.write_text('')
    inside = checkpoint_folder.locate('', str(file / 'in'))
    with self.assertRaisesRegex(
      ValueError, r'/in cannot be used .*Not a directory.*checkpoint\.folder'
    ):
      checkpoint_folder.prepare(inside, checkpoint_folder.Found((), (), ()))


class PrepareTogetherTest(_Test):
  def _errors(self, folder_of):
    """Returns what each of three raises, which see these folders."""

    def body(job):
      folder = folder_of[job.index]
      found = checkpoint_folder.look(folder)
      checkpoint_folder.prepare_together(folder, found, job)

    return [ended.error for ended in fake_jobs.endings(3, body)]

  def test_one_folder_is_made_and_nothing_is_left_in_it(self):
    self.assertEqual(self._errors([self.folder] * 3), [None] * 3)
    self.assertEqual([*self.folder.iterdir()], [])

  def test_what_was_begun_is_removed_by_the_first(self):
    self.make('3', '9.orbax-checkpoint-tmp')
    self.finish('3')
    self.assertEqual(self._errors([self.folder] * 3), [None] * 3)
    self.assertEqual([p.name for p in self.folder.iterdir()], ['3'])

  def test_one_that_others_do_not_see_is_refused_in_all(self):
    other = self.folder.parent / 'other'
    other.mkdir()
    errors = self._errors([self.folder, self.folder, other])
    for error, folder in zip(
      errors, [self.folder, self.folder, other], strict=True
    ):
      self.assertIsInstance(error, ValueError)
      self.assertEqual(
        str(error),
        f'{folder} is not one folder for all processes: process 2 does not '
        'see what the first writes there; name one that all share, in a bucket '
        '(gs://...) say, by --config.checkpoint.folder',
      )
    self.assertEqual([*self.folder.iterdir()], [])

  def test_where_the_first_cannot_write_nobody_goes_on(self):
    file = pathlib.Path(str(self.folder))
    file.write_text('')
    inside = checkpoint_folder.locate('', str(file / 'in'))
    first, *others = self._errors([inside] * 3)
    self.assertRegex(str(first), 'in cannot be used .*Not a directory')
    for error in others:
      self.assertIsInstance(error, fake_jobs.LeftAloneError)

  def test_one_alone_prepares_it(self):
    found = checkpoint_folder.look(self.folder)
    checkpoint_folder.prepare_together(self.folder, found, job_lib.Job())
    self.assertEqual([*self.folder.iterdir()], [])


class ReasonTest(absltest.TestCase):
  def test_it_is_the_first_cause_on_one_line(self):
    try:
      try:
        raise OSError('no\n room')
      except OSError as error:
        raise RuntimeError('a save failed') from error
    except RuntimeError as error:
      self.assertEqual(checkpoint_folder.reason(error), 'no room')

  def test_of_a_long_one_what_the_system_says_is_kept(self):
    text = f'a{" b" * 200} [OS error 27: EFBIG File too large] {"c " * 200}end'
    found = checkpoint_folder.reason(ValueError(text))
    self.assertIn(' ... File too large ... ', found)
    self.assertEndsWith(found, 'c end')
    # Once, where an end has it already.
    text = f'{"a " * 300} File too large'
    found = checkpoint_folder.reason(ValueError(text))
    self.assertEqual(found.count('File too large'), 1)

  def test_of_a_long_one_the_ends_are_kept(self):
    found = checkpoint_folder.reason(ValueError('a' * 500 + ' disk full'))
    self.assertStartsWith(found, 'a' * 100 + ' ... ')
    self.assertEndsWith(found, 'disk full')
    self.assertLen(found, 405)

  def test_one_without_words_is_its_name(self):
    self.assertEqual(checkpoint_folder.reason(KeyError()), 'KeyError')


if __name__ == '__main__':
  absltest.main()
